// Before the first paint: the theme that was chosen last time. The rest is in state/theme.svelte.ts.
try {
  const theme = localStorage.getItem("holdfast.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch (error) {
  console.info("No storage in this window; the system's theme is used.", error);
}
