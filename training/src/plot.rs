//! A line chart as PNG: reward over steps, one line a worker.

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

const SIZE: (u32, u32) = (1000, 600);
const FONT: &str = "DejaVu Sans";
const FONT_BYTES: &[u8] = include_bytes!("../assets/DejaVuSans-subset.ttf");
static REGISTERED: LazyLock<bool> =
    LazyLock::new(|| register_font(FONT, FontStyle::Normal, FONT_BYTES).is_ok());

/// Draws `series` into a PNG of 1000 × 600 pixels.
///
/// # Errors
/// Nothing to draw, or a file that cannot be written.
pub fn write_chart(path: &Path, labels: Labels<'_>, series: &[Series]) -> Result<(), PlotError> {
    let Some(frame) = Frame::around(series) else {
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
    let area = BitMapBackend::new(path, SIZE).into_drawing_area();
    draw(&area, labels, series, &frame).map_err(|e| failed(e.to_string()))?;
    area.present().map_err(|e| failed(e.to_string()))
}

/// The extent of all finite points, never empty.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn around(series: &[Series]) -> Option<Self> {
        let points: Vec<(f64, f64)> = series.iter().flat_map(finite).collect();
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
    labels: Labels<'_>,
    series: &[Series],
    frame: &Frame,
) -> Result<(), DrawError<'a>> {
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(labels.title, (FONT, 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(frame.x.0..frame.x.1, frame.y.0..frame.y.1)?;
    chart
        .configure_mesh()
        .x_desc(labels.x)
        .y_desc(labels.y)
        .axis_desc_style((FONT, 16))
        .label_style((FONT, 14))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    for (index, one) in series.iter().enumerate() {
        let style = Palette99::pick(index).stroke_width(2);
        chart
            .draw_series(LineSeries::new(finite(one), style))?
            .label(one.name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
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
    fn a_folder_that_is_not_there_is_said() {
        let error = write_chart(Path::new("/nonexistent/p.png"), LABELS, &[series(1.0)]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/p.png"), "{error}");
    }
}
