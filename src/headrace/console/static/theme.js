// Before the first paint: the theme that was chosen, or the system's.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* storage may be forbidden */ }
