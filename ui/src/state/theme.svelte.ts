/** Light, dark, or as the system says. theme.js sets the same attribute before the first paint. */

export type Choice = "system" | "light" | "dark";
const NAME = "holdfast.theme";

class Theme {
  choice = $state<Choice>(stored());

  set(choice: Choice): void {
    this.choice = choice;
    if (choice === "system") {
      localStorage.removeItem(NAME);
      delete document.documentElement.dataset["theme"];
    } else {
      localStorage.setItem(NAME, choice);
      document.documentElement.dataset["theme"] = choice;
    }
  }

  /** The other one than what is seen now. */
  toggle(): void {
    const dark =
      this.choice === "dark" || (this.choice === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
    this.set(dark ? "light" : "dark");
  }
}

function stored(): Choice {
  const choice = localStorage.getItem(NAME);
  return choice === "light" || choice === "dark" ? choice : "system";
}

export const theme = new Theme();
