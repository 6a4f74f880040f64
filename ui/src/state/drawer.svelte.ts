/** What is open over the page: on a phone the sidebar, anywhere the palette and the help. */

class Drawer {
  open = $state(false);
  palette = $state(false);
  help = $state(false);
}

export const drawer = new Drawer();
