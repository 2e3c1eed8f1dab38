// The charts of the console: draws the points that the stream of the page sends, at most those of five minutes.
"use strict";

(() => {
  const MOST_POINTS = 300;
  const CHARTS = [
    // Each line differs from the others by its dashes too, for those who cannot tell the colours apart.
    {
      id: "chart-jobs",
      series: [["inflight", "Inflight", "--accent", []], ["running", "Running", "--good", [2, 3]], ["waiting", "Waiting", "--warn", [8, 4]]],
    },
    { id: "chart-tokens", series: [["tokens", "Tokens per second", "--accent", []]] },
  ];
  let points = [];
  let isPaused = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const columns = (series) => [points.map((point) => point.t), ...series.map(([name]) => points.map((point) => point[name]))];

  function make(chart) {
    const place = document.getElementById(chart.id);
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    chart.plot?.destroy();
    chart.plot = new uPlot({
      width: place.clientWidth,
      height: 170,
      // Half of a time is right of the last point.
      padding: [null, 32, null, null],
      cursor: { show: false },
      legend: { live: false, show: chart.series.length > 1 },
      tzDate: (seconds) => uPlot.tzDate(new Date(1000 * seconds), "Etc/UTC"),
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      // 60 px have room for "100,000".
      axes: [{ ...axis, values: "{HH}:{mm}:{ss}", space: 90 }, { ...axis, size: 60 }],
      series: [
        {},
        ...chart.series.map(([, label, name, dash]) => ({ label, stroke: colour(name), dash, width: 2, points: { show: false } })),
      ],
    }, columns(chart.series), place);
  }

  function draw() {
    if (!isPaused) for (const chart of CHARTS) chart.plot.setData(columns(chart.series));
  }

  document.addEventListener("htmx:sseOpen", (event) => {
    if (event.target.id !== "live") return;
    const source = event.detail.source;
    if (source.hasCharts) return;
    source.hasCharts = true;
    source.addEventListener("history", (message) => { points = JSON.parse(message.data); draw(); });
    source.addEventListener("point", (message) => {
      points = [...points, JSON.parse(message.data)].slice(-MOST_POINTS);
      draw();
    });
  });
  document.addEventListener("console:paused", (event) => { isPaused = event.detail; draw(); });

  if (!document.getElementById(CHARTS[0].id)) return;
  const makeAll = () => CHARTS.forEach(make);
  makeAll();
  document.addEventListener("console:colours", makeAll);
  addEventListener("resize", () => {
    for (const chart of CHARTS) chart.plot.setSize({ width: document.getElementById(chart.id).clientWidth, height: 170 });
  });
})();
