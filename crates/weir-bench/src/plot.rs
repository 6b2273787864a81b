//! The results as an SVG picture: a dot for each median with a line from the slowest to the fastest round, on
//! logarithmic axes, since what is compared spans factors of a hundred; the copy limit as an upright bar.
//!
//! ```text
//! title, legend
//! bandwidth panel    label | ----o-- target 1      |   <- copy limit
//!                          |  --o--- target 2      |
//! files panel        the same, if metadata was measured
//! ```

use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::plan::Metric;
use crate::results::{Results, Spread};

/// Okabe and Ito's colours, which colour-blind readers tell apart.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const GRID: RGBColor = RGBColor(225, 225, 225);
const BAND: RGBColor = RGBColor(247, 247, 247);

const WIDTH: u32 = 1000;
/// Where the axes begin and end, in pixels from the left.
const LEFT: i32 = 300;
const RIGHT: i32 = 960;
const HEAD: i32 = 76;
/// Above and below the rows of a panel: its title, and the axis with its words.
const PANEL_TOP: i32 = 34;
const PANEL_BOTTOM: i32 = 56;
/// Between two metrics, and for each target of one.
const GAP: i32 = 8;
const LINE: i32 = 15;

type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line of the plot: a dot for each target.
struct DotRow {
    label: String,
    /// (which target, its rate), in the axis's unit.
    dots: Vec<(usize, Spread)>,
    limit: Option<f64>,
}

impl DotRow {
    fn height(&self) -> i32 {
        GAP + LINE * pixels(self.dots.len())
    }

    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.dots
            .iter()
            .flat_map(|(_, s)| [s.min, s.max])
            .chain(self.limit)
    }
}

struct Panel {
    title: &'static str,
    axis: &'static str,
    rows: Vec<DotRow>,
}

impl Panel {
    fn height(&self) -> i32 {
        PANEL_TOP + PANEL_BOTTOM + self.rows.iter().map(DotRow::height).sum::<i32>()
    }
}

/// Draws what `results` has on `targets` (their names, in order) into an SVG file.
///
/// # Errors
/// Nothing to draw, or the file cannot be written.
pub fn draw(results: &Results, targets: &[&str], path: &Path) -> anyhow::Result<()> {
    let panels = panels(results, targets);
    anyhow::ensure!(!panels.is_empty(), "there are no results to draw");
    let height = HEAD + panels.iter().map(Panel::height).sum::<i32>();
    let area = SVGBackend::new(path, (WIDTH, height.unsigned_abs())).into_drawing_area();
    draw_all(&area, &panels, targets).map_err(|error| anyhow!("{error}"))
}

fn panels(results: &Results, targets: &[&str]) -> Vec<Panel> {
    let gib = f64::from(1 << 30);
    let all = [
        (
            false,
            gib,
            "Bandwidth",
            "GiB/s, all processes together (median; line: slowest to fastest round)",
        ),
        (
            true,
            1e3,
            "Metadata",
            "thousand files a second, all processes together",
        ),
    ];
    let panels = all.map(|(metadata, unit, title, axis)| Panel {
        title,
        axis,
        rows: results
            .metrics()
            .filter(|m| !m.op.is_limit() && m.op.is_metadata() == metadata)
            .map(|metric| row(results, metric, targets, unit))
            .collect(),
    });
    panels.into_iter().filter(|p| !p.rows.is_empty()).collect()
}

fn row(results: &Results, metric: &Metric, targets: &[&str], unit: f64) -> DotRow {
    let scaled = |s: Spread| Spread {
        median: s.median / unit,
        min: s.min / unit,
        max: s.max / unit,
    };
    let rates = targets
        .iter()
        .enumerate()
        .map(|(i, t)| Some((i, scaled(results.rate(metric, t)?))));
    let limit = metric
        .copy_limit()
        .and_then(|m| results.rate(&m, results.best(&m)?));
    DotRow {
        label: metric.label(),
        dots: rates.flatten().collect(),
        limit: limit.map(|s| s.median / unit),
    }
}

/// A logarithmic axis over whole steps of 1, 2, 5.
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    fn over(rows: &[DotRow]) -> Self {
        let values = || rows.iter().flat_map(DotRow::values).filter(|v| *v > 0.0);
        let (low, high) = (
            values().fold(f64::MAX, f64::min),
            values().fold(0.0, f64::max),
        );
        let steps = steps(-9..=12);
        let from = steps.iter().rfind(|s| **s < low).copied().unwrap_or(1e-9);
        let to = steps.iter().find(|s| **s > high).copied().unwrap_or(1e12);
        Axis { from, to }
    }

    #[allow(clippy::cast_possible_truncation)] // A place on a page of 1000 pixels.
    fn place(&self, value: f64) -> i32 {
        let share = (value / self.from).ln() / (self.to / self.from).ln();
        LEFT + (share * f64::from(RIGHT - LEFT)).round() as i32
    }

    fn marks(&self) -> Vec<f64> {
        let inside = |s: &f64| *s >= self.from * 0.999 && *s <= self.to * 1.001;
        steps(-9..=12).into_iter().filter(inside).collect()
    }
}

fn steps(decades: RangeInclusive<i32>) -> Vec<f64> {
    decades
        .flat_map(|d| [1.0, 2.0, 5.0].map(|s| s * 10f64.powi(d)))
        .collect()
}

type PlotResult = Result<(), Box<dyn std::error::Error>>;

fn draw_all(area: &PlotArea<'_>, panels: &[Panel], targets: &[&str]) -> PlotResult {
    area.fill(&WHITE)?;
    text(area, "weir bench", (20, 24), 20, HPos::Left)?;
    draw_legend(area, panels, targets)?;
    let mut top = HEAD;
    for panel in panels {
        draw_panel(area, panel, top)?;
        top += panel.height();
    }
    area.present()?;
    Ok(())
}

fn draw_legend(area: &PlotArea<'_>, panels: &[Panel], targets: &[&str]) -> PlotResult {
    let mut at = 24;
    for (i, name) in targets.iter().enumerate() {
        area.draw(&Circle::new((at, 54), 5, colour(i).filled()))?;
        text(area, name, (at + 12, 54), 14, HPos::Left)?;
        at += 34 + 8 * pixels(name.len());
    }
    if panels
        .iter()
        .flat_map(|p| &p.rows)
        .any(|r| r.limit.is_some())
    {
        area.draw(&PathElement::new(
            [(at, 46), (at, 62)],
            BLACK.stroke_width(3),
        ))?;
        text(
            area,
            "limit of copying into or out of warm memory",
            (at + 10, 54),
            14,
            HPos::Left,
        )?;
    }
    Ok(())
}

fn draw_panel(area: &PlotArea<'_>, panel: &Panel, top: i32) -> PlotResult {
    let axis = Axis::over(&panel.rows);
    let begin = top + PANEL_TOP;
    let end = top + panel.height() - PANEL_BOTTOM;
    text(area, panel.title, (20, top + 18), 16, HPos::Left)?;
    let mut at = begin;
    for (i, row) in panel.rows.iter().enumerate() {
        if i % 2 == 0 {
            let band = Rectangle::new([(20, at), (RIGHT, at + row.height())], BAND.filled());
            area.draw(&band)?;
        }
        at += row.height();
    }
    for mark in axis.marks() {
        let x = axis.place(mark);
        area.draw(&PathElement::new([(x, begin), (x, end)], GRID))?;
        text(area, &mark_text(mark), (x, end + 12), 13, HPos::Center)?;
    }
    text(
        area,
        panel.axis,
        (LEFT + (RIGHT - LEFT) / 2, end + 32),
        13,
        HPos::Center,
    )?;
    let mut at = begin;
    for row in &panel.rows {
        draw_row(area, row, &axis, at)?;
        at += row.height();
    }
    Ok(())
}

fn draw_row(area: &PlotArea<'_>, row: &DotRow, axis: &Axis, top: i32) -> PlotResult {
    text(
        area,
        &row.label,
        (LEFT - 12, top + row.height() / 2),
        13,
        HPos::Right,
    )?;
    for (line, (target, rate)) in row.dots.iter().enumerate() {
        let y = top + GAP / 2 + LINE * pixels(line) + LINE / 2;
        let span = [(axis.place(rate.min), y), (axis.place(rate.max), y)];
        area.draw(&PathElement::new(span, colour(*target).stroke_width(2)))?;
        area.draw(&Circle::new(
            (axis.place(rate.median), y),
            5,
            colour(*target).filled(),
        ))?;
    }
    if let Some(limit) = row.limit {
        let x = axis.place(limit);
        let bar = [(x, top + 3), (x, top + row.height() - 3)];
        area.draw(&PathElement::new(bar, BLACK.stroke_width(3)))?;
    }
    Ok(())
}

fn text(area: &PlotArea<'_>, words: &str, at: (i32, i32), size: i32, side: HPos) -> PlotResult {
    let style = TextStyle::from(("sans-serif", size).into_font()).pos(Pos::new(side, VPos::Center));
    area.draw_text(words, &style, at)?;
    Ok(())
}

fn mark_text(mark: f64) -> String {
    // `f64` prints 0.05 and 20 as people write them.
    format!("{}", (mark * 1e9).round() / 1e9)
}

fn colour(target: usize) -> RGBColor {
    COLOURS[target % COLOURS.len()]
}

fn pixels(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_holds_all_values_between_round_marks() {
        let row = DotRow {
            label: String::new(),
            dots: vec![(0, Spread::from_values([0.13, 4.2]).unwrap())],
            limit: Some(24.1),
        };
        let axis = Axis::over(&[row]);
        assert_eq!((axis.from, axis.to), (0.1, 50.0));
        assert_eq!((axis.place(0.1), axis.place(50.0)), (LEFT, RIGHT));
        assert_eq!(axis.marks().len(), 9);
        assert_eq!(mark_text(0.05), "0.05");
    }
}
