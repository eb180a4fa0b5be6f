// What the browser remembers; a browser that forbids it forgets.

export function load(name, otherwise) {
  try {
    const text = localStorage.getItem(`headrace.${name}`);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function save(name, value) {
  try {
    localStorage.setItem(`headrace.${name}`, JSON.stringify(value));
  } catch { /* full, or forbidden */ }
}
