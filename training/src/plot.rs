//! Line charts as PNG: reward over steps, one line a worker; a metric over steps, a line and a band over its seeds.

use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// (x, y), x ascending. Points that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// What stands around the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labels<'a> {
    /// Above the chart.
    pub title: &'a str,
    /// Below it.
    pub x: &'a str,
    /// Left of it.
    pub y: &'a str,
}

/// Why there is no chart.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// No line has a finite point.
    #[error("{path}: there is nothing to draw: no series has a finite point")]
    Nothing {
        /// The file that would have been.
        path: PathBuf,
    },
    /// The picture cannot be drawn or written.
    #[error("{path}: the chart cannot be written: {reason}")]
    Draw {
        /// The file.
        path: PathBuf,
        /// The drawing library's reason.
        reason: String,
    },
}

/// A line's spread: (x, low, high), x ascending. Points that are not finite are left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Index of the line, whose colour it has.
    pub series: usize,
    /// Its edges.
    pub edges: Vec<(f64, f64, f64)>,
}

/// How y runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    #[default]
    Linear,
    /// By powers of ten; points at or below 0 are left out.
    Log,
}

/// One chart of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel<'a> {
    /// Title and axes.
    pub labels: Labels<'a>,
    /// Lines.
    pub series: Vec<Series>,
    /// Their spreads.
    pub bands: Vec<Band>,
    /// The y axis.
    pub scale: Scale,
}

const WIDTH: u32 = 1000;
/// Height of a picture of one panel, and of each of several.
const HEIGHTS: (u32, u32) = (600, 420);
/// Lines of no more points than this have them marked.
const MARKED: usize = 24;
const FONT: &str = "DejaVu Sans";
const FONT_BYTES: &[u8] = include_bytes!("../assets/DejaVuSans-subset.ttf");
static REGISTERED: LazyLock<bool> =
    LazyLock::new(|| register_font(FONT, FontStyle::Normal, FONT_BYTES).is_ok());

/// Draws `series` into a PNG of 1000 × 600 pixels.
///
/// # Errors
/// Nothing to draw, or a file that cannot be written.
pub fn write_chart(path: &Path, labels: Labels<'_>, series: &[Series]) -> Result<(), PlotError> {
    let panel = Panel {
        labels,
        series: series.to_vec(),
        bands: Vec::new(),
        scale: Scale::Linear,
    };
    write_panels(path, &[panel])
}

/// Draws `panels` one below the other into a PNG.
///
/// # Errors
/// A panel with nothing to draw, or a file that cannot be written.
pub fn write_panels(path: &Path, panels: &[Panel<'_>]) -> Result<(), PlotError> {
    let scaled: Vec<Panel<'_>> = panels.iter().map(scaled).collect();
    let frames: Option<Vec<Frame>> = scaled.iter().map(Frame::around).collect();
    let Some(frames) = frames.filter(|frames| !frames.is_empty()) else {
        return Err(PlotError::Nothing {
            path: path.to_owned(),
        });
    };
    let failed = |reason: String| PlotError::Draw {
        path: path.to_owned(),
        reason,
    };
    if !*REGISTERED {
        return Err(failed("the built-in font does not load".into()));
    }
    let height = match panels.len() {
        1 => HEIGHTS.0,
        several => HEIGHTS.1 * several as u32,
    };
    // The drawing library's own words for it name its types.
    std::fs::File::options()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|error| failed(format!("{error}; check the path")))?;
    let area = BitMapBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE).map_err(|e| failed(e.to_string()))?;
    for ((part, panel), frame) in area
        .split_evenly((panels.len(), 1))
        .iter()
        .zip(&scaled)
        .zip(&frames)
    {
        draw(part, panel, frame).map_err(|e| failed(e.to_string()))?;
    }
    area.present().map_err(|e| failed(e.to_string()))
}

/// The panel with y as it is drawn: log₁₀ of it on a logarithmic axis.
fn scaled<'a>(panel: &Panel<'a>) -> Panel<'a> {
    let mut panel = panel.clone();
    if panel.scale == Scale::Log {
        // The logarithm of 0 or less is not finite, and so left out.
        let points = panel.series.iter_mut().flat_map(|s| &mut s.points);
        points.for_each(|p| p.1 = p.1.log10());
        let edges = panel.bands.iter_mut().flat_map(|b| &mut b.edges);
        edges.for_each(|e| (e.1, e.2) = (e.1.log10(), e.2.log10()));
    }
    panel
}

/// The extent of all finite points, never empty.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn around(panel: &Panel<'_>) -> Option<Self> {
        let edges = panel.bands.iter().flat_map(finite_edges);
        let points: Vec<(f64, f64)> = panel
            .series
            .iter()
            .flat_map(finite)
            .chain(edges.flat_map(|(x, low, high)| [(x, low), (x, high)]))
            .collect();
        let extent = |values: Vec<f64>| -> Option<(f64, f64)> {
            let low = values.iter().copied().reduce(f64::min)?;
            let high = values.iter().copied().reduce(f64::max)?;
            Some(if low < high {
                (low, high)
            } else {
                (low - 0.5, high + 0.5)
            })
        };
        let y = extent(points.iter().map(|p| p.1).collect())?;
        let margin = 0.05 * (y.1 - y.0);
        Some(Self {
            x: extent(points.iter().map(|p| p.0).collect())?,
            y: (y.0 - margin, y.1 + margin),
        })
    }
}

fn finite_edges(band: &Band) -> impl Iterator<Item = (f64, f64, f64)> {
    let edges = band.edges.iter().copied();
    edges.filter(|(x, low, high)| x.is_finite() && low.is_finite() && high.is_finite())
}

fn finite(series: &Series) -> impl Iterator<Item = (f64, f64)> {
    series
        .points
        .iter()
        .copied()
        .filter(|(x, y)| x.is_finite() && y.is_finite())
}

type DrawError<'a> = DrawingAreaErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>;

fn draw<'a>(
    area: &DrawingArea<BitMapBackend<'a>, plotters::coord::Shift>,
    panel: &Panel<'_>,
    frame: &Frame,
) -> Result<(), DrawError<'a>> {
    let labels = panel.labels;
    let mut chart = ChartBuilder::on(area)
        .caption(labels.title, (FONT, 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(frame.x.0..frame.x.1, frame.y.0..frame.y.1)?;
    let power = |y: &f64| format!("{:.1e}", 10f64.powf(*y));
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(labels.x)
        .y_desc(labels.y)
        .axis_desc_style((FONT, 16))
        .label_style((FONT, 14))
        .light_line_style(BLACK.mix(0.05));
    if panel.scale == Scale::Log {
        mesh.y_label_formatter(&power);
    }
    mesh.draw()?;
    for band in &panel.bands {
        let edges: Vec<_> = finite_edges(band).collect();
        let lows = edges.iter().map(|(x, low, _)| (*x, *low));
        let highs = edges.iter().rev().map(|(x, _, high)| (*x, *high));
        let around: Vec<(f64, f64)> = lows.chain(highs).collect();
        let colour = Palette99::pick(band.series).mix(0.18);
        chart.draw_series([Polygon::new(around, colour)])?;
    }
    for (index, one) in panel.series.iter().enumerate() {
        let style = Palette99::pick(index).stroke_width(2);
        chart
            .draw_series(LineSeries::new(finite(one), style))?
            .label(one.name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        if one.points.len() <= MARKED {
            let dots = finite(one).map(|point| Circle::new(point, 4, Palette99::pick(index).filled()));
            chart.draw_series(dots)?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 14))
        .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: Labels<'_> = Labels {
        title: "Reward",
        x: "step",
        y: "mean reward",
    };

    fn series(slope: f64) -> Series {
        Series {
            name: format!("worker {slope}"),
            points: (0..20).map(|x| (f64::from(x), slope * f64::from(x))).collect(),
        }
    }

    #[test]
    fn a_chart_is_a_png_that_differs_with_its_data() {
        let dir = tempfile::tempdir().unwrap();
        let draw = |name: &str, slope| {
            let path = dir.path().join(name);
            write_chart(&path, LABELS, &[series(1.0), series(slope)]).unwrap();
            std::fs::read(path).unwrap()
        };
        let (a, b) = (draw("a.png", 2.0), draw("b.png", -2.0));
        assert!(a.starts_with(b"\x89PNG\r\n\x1a\n") && a.len() > 5000);
        assert_ne!(a, b);
    }

    #[test]
    fn holes_and_flat_lines_are_drawn_and_nothing_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.png");
        let holes = Series {
            name: "holes".into(),
            points: vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 1.0)],
        };
        write_chart(&path, LABELS, &[holes]).unwrap();
        let nothing = Series {
            name: "nothing".into(),
            points: vec![(0.0, f64::NAN)],
        };
        assert!(matches!(
            write_chart(&path, LABELS, &[nothing]),
            Err(PlotError::Nothing { .. })
        ));
    }

    #[test]
    fn bands_scales_and_panels_are_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.png");
        let panel = |scale, bands| Panel {
            labels: LABELS,
            series: vec![series(1.0)],
            bands,
            scale,
        };
        let band = Band {
            series: 0,
            edges: (1..20)
                .map(|x| (f64::from(x), f64::from(x) - 0.5, f64::from(x) + 3.0))
                .collect(),
        };
        let mut seen = Vec::new();
        for panels in [
            vec![panel(Scale::Linear, vec![])],
            vec![panel(Scale::Linear, vec![band.clone()])],
            vec![panel(Scale::Log, vec![band])],
            vec![panel(Scale::Linear, vec![]), panel(Scale::Log, vec![])],
        ] {
            write_panels(&path, &panels).unwrap();
            seen.push(std::fs::read(&path).unwrap());
        }
        assert!((1..4).all(|i| seen[..i].iter().all(|other| *other != seen[i])));
        assert!(matches!(write_panels(&path, &[]), Err(PlotError::Nothing { .. })));
    }

    #[test]
    fn a_folder_that_is_not_there_is_said() {
        let error = write_chart(Path::new("/nonexistent/p.png"), LABELS, &[series(1.0)]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/p.png"), "{error}");
    }
}
