// Runs before the page is drawn, so that a chosen theme does not flash the other one.
(() => {
  try {
    const chosen = localStorage.getItem("oncemore-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be switched off; the theme of the system is used then.
  }
})();
