"use strict";
// Tables sort by a click on a heading: numbers by value, the rest by letters.
for (const heading of document.querySelectorAll("th button")) {
  heading.addEventListener("click", () => {
    const cell = heading.closest("th");
    const body = heading.closest("table").tBodies[0];
    const column = cell.cellIndex;
    const down = cell.getAttribute("aria-sort") !== "descending";
    for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const rows = [...body.rows].sort((one, two) => {
      const a = value(one), b = value(two);
      if (a === "" || b === "") return (a === "") - (b === "");
      const order = isNaN(a) || isNaN(b) ? String(a).localeCompare(b) : a - b;
      return down ? -order : order;
    });
    body.append(...rows);
  });
}

const tip = document.getElementById("tip");
const maps = JSON.parse(document.getElementById("tasks").textContent);

function show(circle, x, y) {
  const task = maps[circle.dataset.map][circle.dataset.task];
  tip.replaceChildren();
  const title = document.createElement("strong");
  title.textContent = `task ${task.number}: ${task.state}`;
  const line = document.createElement("div");
  line.textContent = task.text;
  const cards = document.createElement("div");
  cards.className = "cards";
  cards.innerHTML = task.cards;
  tip.append(title, line, cards);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 14) : y + 18}px`;
}

for (const circle of document.querySelectorAll(".map circle")) {
  circle.addEventListener("mousemove", (event) => show(circle, event.clientX, event.clientY));
  circle.addEventListener("mouseleave", () => { tip.hidden = true; });
  circle.addEventListener("click", (event) => { show(circle, event.clientX, event.clientY); event.stopPropagation(); });
}
document.addEventListener("click", () => { tip.hidden = true; });
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
