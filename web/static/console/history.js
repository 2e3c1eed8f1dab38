// The charts of the page of the history. They are drawn once; a click shows the time that was clicked.
"use strict";

(() => {
  const place = document.getElementById("history");
  if (!place) return;
  const past = JSON.parse(place.dataset.charts);
  // Each line differs from the others by its dashes too, for those who cannot tell the colours apart.
  const STYLES = [["--accent", []], ["--warn", [8, 4]], ["--bad", [2, 3]], ["--good", [12, 3, 2, 3]], ["--muted", [4, 4]]];
  const CHARTS = ["jobs", "refused", "tokens", "first", "spent"].filter((id) => document.getElementById(`past-${id}`));
  const plots = {};

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // A point that is missing interrupts the lines.
  function columns(lines) {
    const filled = [[], ...lines.map(() => [])];
    past.times.forEach((time, i) => {
      if (i > 0 && time - past.times[i - 1] > 1.5 * past.step) {
        filled[0].push(past.times[i - 1] + past.step);
        lines.forEach((_, line) => filled[line + 1].push(null));
      }
      filled[0].push(time);
      lines.forEach((values, line) => filled[line + 1].push(values[i]));
    });
    return filled;
  }

  function markTime(plot) {
    if (past.at === null) return;
    const x = plot.valToPos(past.at, "x", true);
    plot.ctx.save();
    plot.ctx.strokeStyle = colour("--text");
    plot.ctx.setLineDash([4, 4]);
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, plot.bbox.top);
    plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
    plot.ctx.stroke();
    plot.ctx.restore();
  }

  function goTo(plot, event) {
    const seconds = plot.posToVal(event.offsetX, "x");
    if (!(seconds >= past.from && seconds <= past.to)) return;
    const target = new URL(location.href);
    target.searchParams.set("at", new Date(1000 * Math.floor(seconds)).toISOString().slice(0, 19) + "Z");
    location.assign(target);
  }

  function make(id) {
    const box = document.getElementById(`past-${id}`);
    const names = Object.keys(past[id]);
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const isLong = past.to - past.from > 86_400;
    const isShort = past.to - past.from < 900;
    plots[id]?.destroy();
    if (names.length === 0 || past.times.length === 0) {
      box.textContent = "none";
      return;
    }
    plots[id] = new uPlot({
      width: box.clientWidth,
      height: 170,
      // Half of a time is right of the last point.
      padding: [null, isLong ? 60 : 32, null, null],
      cursor: { drag: { x: false, y: false, click: () => {} }, points: { show: false } },
      legend: { live: false, show: names.length > 1 || id === "refused" },
      tzDate: (seconds) => uPlot.tzDate(new Date(1000 * seconds), "Etc/UTC"),
      scales: { x: { range: () => [past.from, past.to] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, values: isLong ? "{YYYY}-{MM}-{DD} {HH}:{mm}" : isShort ? "{HH}:{mm}:{ss}" : "{HH}:{mm}", space: isLong ? 130 : isShort ? 90 : 60 }, { ...axis, size: 60 }],
      hooks: { draw: [markTime], ready: [(plot) => plot.over.addEventListener("click", (event) => goTo(plot, event))] },
      series: [
        {},
        ...names.map((label, i) => ({ label, stroke: colour(STYLES[i][0]), dash: STYLES[i][1], width: 2, points: { show: past.times.length < 3 } })),
      ],
    }, columns(Object.values(past[id])), box);
  }

  const makeAll = () => CHARTS.forEach(make);
  makeAll();
  document.addEventListener("console:colours", makeAll);
  addEventListener("resize", () => {
    for (const [id, plot] of Object.entries(plots)) plot.setSize({ width: document.getElementById(`past-${id}`).clientWidth, height: 170 });
  });
})();
