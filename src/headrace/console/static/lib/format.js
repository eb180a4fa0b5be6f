// Numbers, sizes and times as people read them.

const NUMBER = new Intl.NumberFormat("en-US");

export function count(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(Math.round(value));
}

/** 1,234 → 1.23 k */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [step, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= step) return `${digits(value / (unit === "k" ? 1e3 : step))} ${unit}`;
  }
  return size >= 100 || Number.isInteger(value) ? NUMBER.format(Math.round(value)) : digits(value);
}

function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

/** 1 GB is 10⁹ bytes, as in `headrace status`. */
export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  let size = Math.abs(value);
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(size) : digits(size)} ${units[unit]}`;
}

export const UNITS = {
  "messages/s": (value) => `${short(value)}/s`,
  "bytes/s": (value) => `${bytes(value)}/s`,
  bytes,
  messages: (value) => short(value === null || value === undefined ? value : Math.round(value)),  // a mean of samples has parts
  count: short,
  ms: (value) => duration(value / 1000),
  s: (value) => duration(value),
};

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${digits(seconds / size)} ${unit}`;
  }
  return `${digits(seconds)} s`;
}

/** A setting in ms or bytes, explained: 604800000 → 7 d */
export function explained(name, value) {
  if (value === null || value === undefined || !/^-?\d+$/.test(value)) return "";
  const number = Number(value);
  if (!/(ms|bytes|messages)$/.test(name)) return "";
  if (number === -1 || number >= 2 ** 53 - 1) return "no limit";
  if (name.endsWith(".ms") && number >= 1000) return duration(number / 1000);
  if (name.endsWith("bytes") && number >= 1000) {
    const [size, unit] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([each]) => number % each === 0) || [];
    return unit ? `${number / size} ${unit}` : bytes(number);
  }
  return "";
}

function two(number, width = 2) {
  return String(number).padStart(width, "0");
}

export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${clock(ms)}.${two(at.getMilliseconds(), 3)}`;
}

/** A time with the browser's zone, and as UTC. */
export function zoned(ms) {
  const at = new Date(ms);
  if (ms === null || ms === undefined || ms < 0 || Number.isNaN(at.getTime())) return time(ms);
  const minutes = -at.getTimezoneOffset();
  const zone = `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  return minutes ? `${time(ms)} ${zone} (${at.toISOString().replace("T", " ").replace("Z", " UTC")})` : `${time(ms)} UTC`;
}

export function clock(ms, seconds = true) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
}

const STEPS_S = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000];

/** Round times of the browser's zone for an axis, at most `room` of them, and the seconds between two. */
export function timeMarks(from, to, room, { utc = false } = {}) {
  const step_s = STEPS_S.find((each) => (to - from) / 1000 / each <= room) || 31536000;
  const offset = utc ? 0 : new Date(from).getTimezoneOffset() * 60000;
  const first = Math.ceil((from - offset) / (step_s * 1000)) * step_s * 1000 + offset;
  const marks = [];
  for (let ms = first; ms <= to; ms += step_s * 1000) marks.push(ms);
  return { marks, step_s };
}

export function ago(ms) {
  const seconds = (Date.now() - ms) / 1000;
  if (seconds < 2) return "now";
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([each]) => seconds >= each);
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
