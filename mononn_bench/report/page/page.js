// Sorts a table by the column whose heading is pressed; pressed again, the other way round.
document.querySelectorAll("table.sortable").forEach((table) => {
  table.querySelectorAll("thead button").forEach((button, column) => {
    button.addEventListener("click", () => {
      const heading = button.closest("th");
      const down = heading.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const value = (row) => row.cells[column].dataset.order;
      const rows = Array.from(body.rows).sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const [p, q] = [Number(x.replace("inf", "Infinity")), Number(y.replace("inf", "Infinity"))];
        const order = x === "" || isNaN(p) || isNaN(q) ? x.localeCompare(y) : p === q ? 0 : p - q;
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
});
