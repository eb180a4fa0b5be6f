// What the console says of itself.

import { get } from "./api.js";

export const session = { bootstrap: "", read_only: false, version: "" };

export async function loadSession() {
  Object.assign(session, await get("session"));
  return session;
}
