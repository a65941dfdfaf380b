"use strict";
(() => {
  const parsed = (id) => JSON.parse(document.getElementById(id).textContent);
  const shown = (value) => {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    const rounded = Number(value.toPrecision(4));
    return rounded.toLocaleString("en", { maximumFractionDigits: 6 });
  };
  const MOST_ROWS = 500;

  // A row of the table for each row of the chart, of the level that is drawn.
  const fill = (place, chart, level) => {
    const all = chart.spec.datasets.rows;
    const rows = chart.levels.length ? all.filter((row) => row.level === level) : all;
    const columns = chart.columns.filter(([field]) => rows.some((row) => row[field] !== null && row[field] !== undefined));
    const table = document.createElement("table");
    const line = (parent, kind, texts, numeric) => {
      const tr = parent.insertRow();
      texts.forEach((text, at) => {
        const cell = document.createElement(kind);
        if (kind === "th") cell.scope = "col";
        cell.className = numeric[at] ? "figure" : "setup";
        cell.textContent = text;
        tr.append(cell);
      });
    };
    const numeric = columns.map(([field]) => rows.some((row) => typeof row[field] === "number"));
    line(table.createTHead(), "th", columns.map(([, head]) => head), numeric);
    const body = table.createTBody();
    rows.slice(0, MOST_ROWS).forEach((row) => line(body, "td", columns.map(([field]) => shown(row[field])), numeric));
    place.replaceChildren(table);
    if (rows.length > MOST_ROWS) place.append(`and ${rows.length - MOST_ROWS} rows more`);
  };

  const picker = document.getElementById("level");
  const drawings = parsed("specs").map((chart) => {
    const figure = document.getElementById(`chart-${chart.name}`);
    const box = figure.querySelector(".drawing");
    const details = figure.querySelector("details");
    const drawing = { chart, figure, box, level: chart.levels[0], view: null };
    chart.spec.config.legend.columns = Math.max(1, Math.floor(box.clientWidth / 190));
    drawing.ready = vegaEmbed(box, chart.spec, { actions: false, renderer: "svg" }).then((made) => {
      drawing.view = made.view;
    });
    drawing.fill = () => { if (details.open) fill(details.querySelector("div"), chart, drawing.level); };
    details.addEventListener("toggle", drawing.fill);
    return drawing;
  });
  const pick = (level) => Promise.all(drawings.filter((one) => one.chart.levels.length).map(async (one) => {
    await one.ready;
    one.level = level;
    one.figure.querySelector(".of-level").textContent = `: ${level}`;
    const has = one.chart.levels.includes(level);
    one.figure.querySelector(".drawn").hidden = !has;
    one.figure.querySelector(".nothing").hidden = has;
    one.fill();
    if (has) await one.view.signal("level", level).runAsync();
  }));
  if (picker) picker.addEventListener("change", () => pick(picker.value));
  // What the browser kept from before, or what not every chart has, is drawn by all.
  const picked = picker ? pick(picker.value) : null;

  const theme = document.getElementById("theme");
  const dark = () => (document.documentElement.dataset.theme
    ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  theme.setAttribute("aria-pressed", String(dark()));
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    theme.setAttribute("aria-pressed", String(dark()));
  });

  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const on = (id, act) => document.getElementById(id)?.addEventListener("click", act);
  on("save-result", () => save(document.getElementById("save-result").textContent, "application/json", JSON.stringify(parsed("result"), null, 2)));
  on("save-levels", () => save("levels.csv", "text/csv", parsed("levels-csv")));
  window.loadtestReady = Promise.all([picked, ...drawings.map((one) => one.ready)]);
})();
