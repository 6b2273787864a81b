//! A run over time, as an SVG picture: what the program had written, what the target had, and between both
//! what only the buffer had; below, the rate of the move. The program's I/O is shaded.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

use super::watched::{TargetSample, WatchedRun};

const SIZE: (u32, u32) = (1000, 640);
/// The rate is taken over about this time, s.
const RATE_SPAN_S: f64 = 0.4;
const WRITTEN: RGBColor = RGBColor(213, 94, 0);
const ON_TARGET: RGBColor = RGBColor(0, 114, 178);
const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1_024.0 * MIB;

/// A run, as lines.
#[allow(clippy::cast_precision_loss)] // far below 2^53
struct RunLines {
    /// Seconds and GiB.
    written: Vec<(f64, f64)>,
    /// Seconds and GiB.
    on_target: Vec<(f64, f64)>,
    /// Seconds and MiB/s.
    rate: Vec<(f64, f64)>,
    /// Seconds: the program's I/O.
    writes: Vec<(f64, f64)>,
    end_s: f64,
}

#[allow(clippy::cast_precision_loss)] // far below 2^53
impl RunLines {
    fn from_run(run: &WatchedRun, checkpoint_bytes: u64) -> RunLines {
        let began = run.began_ns();
        let since = |ns: u64| ns.saturating_sub(began) as f64 / 1e9;
        let mut written = vec![(0.0, 0.0)];
        let mut writes = Vec::new();
        let mut gib = 0.0;
        for write in &run.program.writes {
            let from = since(write.start_ns);
            let to = from + write.seconds;
            written.push((from, gib));
            gib += checkpoint_bytes as f64 / GIB;
            written.push((to, gib));
            writes.push((from, to));
        }
        let end_s = since(run.ended_ns);
        written.push((end_s, gib));
        let kept = thin_out(run, end_s / f64::from(SIZE.0));
        let on_target = kept.iter().map(|s| (since(s.at_ns), s.bytes as f64 / GIB));
        RunLines {
            written,
            on_target: on_target.collect(),
            rate: rates(&kept, since),
            writes,
            end_s,
        }
    }
}

/// The samples of a run from its first checkpoint on, at least `step_s` apart, and the last one.
#[allow(clippy::cast_precision_loss)] // far below 2^53
fn thin_out(run: &WatchedRun, step_s: f64) -> Vec<TargetSample> {
    let samples = run.target.iter().copied();
    let mut kept: Vec<TargetSample> = Vec::new();
    for sample in samples.filter(|sample| sample.at_ns >= run.began_ns()) {
        let is_far = |last: &TargetSample| (sample.at_ns - last.at_ns) as f64 / 1e9 >= step_s;
        if kept.last().is_none_or(is_far) {
            kept.push(sample);
        }
    }
    let last = run.target.last().filter(|last| kept.last() != Some(last));
    kept.extend(last);
    kept
}

/// The rate at the end of each span.
#[allow(clippy::cast_precision_loss)] // far below 2^53
fn rates(samples: &[TargetSample], since: impl Fn(u64) -> f64) -> Vec<(f64, f64)> {
    let mut rates = Vec::new();
    let mut from = 0;
    for sample in samples {
        let now = since(sample.at_ns);
        while now - since(samples[from].at_ns) > RATE_SPAN_S {
            from += 1;
        }
        let before = samples[from];
        let span = now - since(before.at_ns);
        if span > RATE_SPAN_S / 2.0 {
            let bytes = sample.bytes.saturating_sub(before.bytes) as f64;
            rates.push((now - span / 2.0, bytes / span / MIB));
        }
    }
    rates
}

/// Draws a run into an SVG file.
///
/// # Errors
/// The file cannot be written.
pub fn draw(run: &WatchedRun, checkpoint_bytes: u64, path: &Path) -> anyhow::Result<()> {
    let lines = RunLines::from_run(run, checkpoint_bytes);
    draw_lines(&lines, path).map_err(|error| anyhow!("{error}"))
}

fn draw_lines(lines: &RunLines, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (upper, lower) = area.split_vertically(400);
    let most = |line: &[(f64, f64)]| line.iter().map(|at| at.1).fold(0.0, f64::max) * 1.08;
    let most_gib = most(&lines.written).max(most(&lines.on_target));
    let mut chart = ChartBuilder::on(&upper)
        .caption("Checkpoints through the buffer", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(24)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..lines.end_s, 0.0..most_gib)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .y_desc("GiB")
        .draw()?;
    let shaded = |top: f64| {
        let shade = WRITTEN.mix(0.18).filled();
        lines
            .writes
            .iter()
            .map(move |(from, to)| Rectangle::new([(*from, 0.0), (*to, top)], shade))
    };
    chart.draw_series(shaded(most_gib))?;
    for (line, colour, label) in [
        (&lines.written, WRITTEN, "written by the program"),
        (&lines.on_target, ON_TARGET, "on the target"),
    ] {
        chart
            .draw_series(LineSeries::new(
                line.iter().copied(),
                colour.stroke_width(2),
            ))?
            .label(label)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2))
            });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    let most_rate = most(&lines.rate).max(1.0);
    let mut chart = ChartBuilder::on(&lower)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..lines.end_s, 0.0..most_rate)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("s")
        .y_desc("move, MiB/s")
        .draw()?;
    chart.draw_series(shaded(most_rate))?;
    chart.draw_series(LineSeries::new(
        lines.rate.iter().copied(),
        ON_TARGET.stroke_width(2),
    ))?;
    area.present()?;
    Ok(())
}
