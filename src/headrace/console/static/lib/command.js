// "Copy as command": what a view shows, as a command line.

import { session } from "./session.js";

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

export function quoted(word) {
  return PLAIN.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`;
}

/** ["topic", "list"] → headrace topic list --bootstrap HOST:PORT */
export function command(words) {
  const where = session.bootstrap && session.bootstrap !== "127.0.0.1:9092" ? ["--bootstrap", session.bootstrap] : [];
  return ["headrace", ...words, ...where].map(quoted).join(" ");
}
