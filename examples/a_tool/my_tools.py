"""A tool is a typed function with a docstring; the model is shown both."""

import holdfast

PRICES = {"green tea": 4.5, "black tea": 3.0}


@holdfast.tool(repeatable=True)
def price(product: str, pounds: int = 1) -> str:
    """Tell what a product costs.

    Args:
        product: its name, in lower case
        pounds: how many pounds of it
    """
    if product not in PRICES:
        raise holdfast.ToolError(f"There is no {product}. There are: {', '.join(PRICES)}.")
    return f"{pounds} lb of {product} cost {PRICES[product] * pounds:.2f}"


agent = holdfast.Agent(prompt="You sell tea. Look prices up before you name them.", tools=[price])
