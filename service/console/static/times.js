// Replace full times by relative ones, and keep the full time in the title.
const STEPS = [
  [60, 1, "s"],
  [3600, 60, "min"],
  [86_400, 3600, "h"],
  [Infinity, 86_400, "d"],
];

export function relative(root) {
  const now = Date.now();
  for (const time of root.querySelectorAll("time[datetime]")) {
    const seconds = Math.max(0, (now - Date.parse(time.dateTime)) / 1000);
    const [, unit, name] = STEPS.find(([below]) => seconds < below);
    const whole = unit === 1 ? 10 * Math.floor(seconds / 10) : Math.floor(seconds / unit);
    const text = whole ? `${whole} ${name} ago` : "just now";
    if (time.textContent !== text) time.textContent = text;
  }
}
