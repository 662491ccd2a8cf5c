// Replace full times by relative ones, and keep the full time in the title.
const STEPS = [
  [60, 1, "s"],
  [3600, 60, "min"],
  [86_400, 3600, "h"],
  [Infinity, 86_400, "d"],
];

// The name of the browser's time zone, such as GMT+1.
export function zone() {
  const parts = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts();
  return parts.find((part) => part.type === "timeZoneName")?.value ?? "local time";
}

// A time of the browser's zone in full.
function full(at) {
  return `${at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" })} ${zone()}`;
}

export function relative(root) {
  const now = Date.now();
  for (const time of root.querySelectorAll("time[datetime]")) {
    const age = (now - Date.parse(time.dateTime)) / 1000; // negative for an expected time
    const seconds = Math.abs(age);
    const [, unit, name] = STEPS.find(([below]) => seconds < below);
    const whole = unit === 1 ? 10 * Math.floor(seconds / 10) : Math.floor(seconds / unit);
    const far = `${whole} ${name}`;
    const text = whole ? (age < 0 ? `in ${far}` : `${far} ago`) : age < 0 ? "soon" : "just now";
    if (time.textContent !== text) time.textContent = text;
    const title = full(new Date(time.dateTime));
    if (time.title !== title) time.title = title;
  }
}
