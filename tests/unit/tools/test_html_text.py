"""HTML as text."""

import pytest

from holdfast.tools.web.html_text import readable_text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<title>T</title><h1>Head</h1><p>One\n two.<p>Three.", "T\n\n# Head\n\nOne two.\n\nThree."),
        ("<title>Same</title><h1>Same</h1>", "# Same"),
        ("<h2>A <b>b</b>c</h2>", "## A bc"),
        ('<a href="/x?y=1">go</a> on', "[go](https://example.org/x?y=1) on"),
        ('<a href="#top">up</a> <a href="javascript:x()">do</a> <a>no</a>', "up do no"),
        ('<a href="http://[">broken</a>', "broken"),
        ('<a href="x"><div>a\n<b>b</b></div></a>', "[a b](https://example.org/dir/x)"),
        ("<ul><li>a<li>b<ol><li>c<li>d</ol></ul>", "- a\n- b\n\n  1. c\n  2. d"),
        ("<pre>a\n  b  c\n</pre>", "```\na\n  b  c\n\n```"),
        ("use <code>x = 1</code> here", "use `x = 1` here"),
        ("a<br>b<hr>c", "a\nb\n\n---\n\nc"),
        ("<table><tr><td>1<td>2<tr><td>3<td>4</table>", "| 1 | 2\n| 3 | 4"),
        ('<img alt="a cat" src="x"> <img src="y">', "[image: a cat]"),
        ("&lt;b&gt; &amp;&nbsp;&#8364; &bogus;", "<b> & € &bogus;"),
        ("<script>var x = '<p>no</p>'</script><style>p{}</style>yes<!-- no -->", "yes"),
        ("<svg><title>icon</title><text>no</text></svg>yes", "icon\n\nyes"),
        ("<nav>" + "menu " * 3 + "</nav><main>" + "text " * 60 + "</main><footer>no</footer>", ("text " * 60).strip()),
        ("<nav>everything is in here", "everything is in here"),
        ("", ""),
        ("<", "<"),
        ("</p></a></ul></pre></nav>x", "x"),
    ],
)
def test_pages(html: str, text: str) -> None:
    assert readable_text(html, "https://example.org/dir/page") == text


@pytest.mark.parametrize("piece", ["<a href='x'>", "<nav>", "<ul><li>", "<pre>", "<td>", "&", "<b>"])
def test_deep_pages_stay_small(piece: str) -> None:
    assert len(readable_text(piece * 10_000, "https://example.org/")) < 1_000_000
