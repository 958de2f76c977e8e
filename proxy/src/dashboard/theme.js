// Dark or light: as the system says, or as chosen here.

import { byId } from "./dom.js";

const THEMES = ["system", "light", "dark"];
const KEPT = "fencepost-theme";

export function bindTheme() {
  let theme = THEMES.includes(kept()) ? kept() : "system";
  const apply = () => {
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = `Theme: ${theme}`;
  };
  byId("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try {
      localStorage.setItem(KEPT, theme);
    } catch {
      // A browser that keeps nothing: the choice lasts as long as the page.
    }
    apply();
  });
  apply();
}

function kept() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}
