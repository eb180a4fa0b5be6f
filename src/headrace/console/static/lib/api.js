// Asking the console: once, live, and with a change.

export class Problem extends Error {
  constructor(status, problem) {
    super(problem.error || `the console answered ${status}`);
    this.status = status;
    this.hint = problem.hint || "";
    this.code = problem.code || "";
    this.missing = problem.missing || false;
  }
}

export function query(parameters) {
  const given = Object.entries(parameters || {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : "";
}

export async function get(name, parameters) {
  return answer(await reach(`/api/${name}${query(parameters)}`, {}));
}

export async function post(name, body) {
  return answer(await reach(`/api/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  }));
}

async function reach(url, options) {
  try {
    return await fetch(url, options);
  } catch {
    throw new Problem(0, { error: "the console does not answer", hint: "is it still running?" });
  }
}

async function answer(response) {
  let content = {};
  try {
    content = await response.json();
  } catch { /* an answer that is not JSON is told by its status */ }
  if (!response.ok) throw new Problem(response.status, content);
  return content;
}

/**
 * A stream of events, closed while the tab is hidden. Handlers are by event: {data, problem, …}.
 * Gives a function that ends it.
 */
export function stream(path, parameters, handlers, { whileHidden = false } = {}) {
  const url = `/live/${path}${query(parameters)}`;
  let source = null;
  let ended = false;
  function open() {
    if (source || ended) return;
    source = new EventSource(url);
    for (const [name, handler] of Object.entries(handlers)) {
      if (name === "lost") continue;
      source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
    }
    source.onerror = () => {
      handlers.lost?.();
      if (source && source.readyState === EventSource.CLOSED) {  // refused: ask again, but not at once
        close();
        setTimeout(() => { if (!document.hidden) open(); }, 3000);
      }
    };
  }
  function close() {
    source?.close();
    source = null;
  }
  function shown() {
    if (document.hidden && !whileHidden) close();
    else open();
  }
  document.addEventListener("visibilitychange", shown);
  shown();
  return () => {
    ended = true;
    document.removeEventListener("visibilitychange", shown);
    close();
  };
}
