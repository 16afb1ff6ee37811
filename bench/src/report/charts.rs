//! The charts of a report. Scope: values in, one picture out.
//! Owns: scales, axes, legends.
//! Invariants: every bar begins at 0; an axis with powers says so by its labels; what has no value is left out, and a chart
//! without any value is no chart.
//! Not here: which figures are shown (the parent).

use super::svg::{Anchor, Svg};

const WIDTH: f64 = 960.0;
const ROW: f64 = 24.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 34.0;
const LABEL: f64 = 270.0;
const RIGHT: f64 = 170.0;
const PLOT_HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
/// Labels are cut to what fits their column.
const LABEL_CHARS: usize = 42;

/// Colours that are told apart by most eyes.
pub const COLOURS: [&str; 8] =
    ["#2f6fab", "#d9822b", "#3d9970", "#a0527d", "#7d6b5d", "#5bb0c9", "#c2a83e", "#5a5fbf"];

/// One bar.
#[derive(Debug, Clone)]
pub struct Bar {
    pub label: String,
    pub value: f64,
    /// Ends of the whisker.
    pub range: Option<(f64, f64)>,
    /// A mark beside the bar, such as what is allowed.
    pub mark: Option<f64>,
    /// Behind the bar.
    pub note: String,
    /// Number of its colour.
    pub colour: usize,
}

/// A line with its points.
#[derive(Debug, Clone)]
pub struct Curve {
    pub label: String,
    pub points: Vec<(f64, f64)>,
    pub dashed: bool,
    pub colour: usize,
}

/// A label, cut in its middle when it is too long.
fn short(label: &str) -> String {
    let chars: Vec<char> = label.chars().collect();
    if chars.len() <= LABEL_CHARS {
        return label.to_owned();
    }
    let half = LABEL_CHARS / 2 - 1;
    let (front, back) = (&chars[..half], &chars[chars.len() - half..]);
    format!("{}…{}", front.iter().collect::<String>(), back.iter().collect::<String>())
}

/// A value with as many digits as one reads.
#[must_use]
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        0.0 => 0,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) =
        text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    rest.map_or(format!("{sign}{grouped}"), |rest| format!("{sign}{grouped}.{rest}"))
}

/// A step of 1, 2 or 5 times a power of ten that divides `max` into about five.
fn step(max: f64) -> f64 {
    let rough = (max / 5.0).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|unit| unit * power).find(|step| *step >= rough).unwrap_or(rough)
}

/// Largest over smallest value from which on bars go in powers of ten: the smallest would not be seen.
const LINEAR_MAX: f64 = 100.0;

/// How long bars are.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Length {
    /// From 0.
    Linear { max: f64, step: f64 },
    /// From a power of ten to another one, as exponents.
    Powers { low: f64, high: f64 },
}

impl Length {
    fn of(bars: &[Bar], max: f64, powers: bool) -> Length {
        let ends = bars.iter().flat_map(|bar| [bar.value, bar.range.map_or(bar.value, |(min, _)| min)]);
        let min = ends.filter(|value| *value > 0.0).fold(max, f64::min);
        match powers && max / min >= LINEAR_MAX {
            true => Length::Powers { low: min.log10().floor(), high: max.log10().ceil() },
            false => Length::Linear { max, step: step(max) },
        }
    }

    /// 0 to 1. What is not above 0 has no length.
    fn part(self, value: f64) -> f64 {
        match self {
            Length::Linear { max, .. } => value / max,
            Length::Powers { .. } if value <= 0.0 => 0.0,
            Length::Powers { low, high } => ((value.log10() - low) / (high - low)).max(0.0),
        }
    }

    fn marks(self) -> Vec<f64> {
        match self {
            Length::Linear { max, step } => {
                (0..).map(|mark| f64::from(mark) * step).take_while(|at| *at <= max * 1.000_1).collect()
            }
            Length::Powers { low, high } => {
                (low as i32..=high as i32).map(|power| 10_f64.powi(power)).collect()
            }
        }
    }
}

/// Bars side by side, one a row, with whiskers. `reference` is a line across all of them. With `powers` they go in powers of ten
/// where they are too far apart, which the title says.
#[must_use]
pub fn bars(
    (title, unit): (&str, &str),
    bars: &[Bar],
    reference: Option<(f64, &str)>,
    powers: bool,
) -> Option<String> {
    let ends = bars
        .iter()
        .flat_map(|bar| [bar.value, bar.range.map_or(0.0, |(_, max)| max), bar.mark.unwrap_or(0.0)]);
    let max = ends.chain(reference.map(|(value, _)| value)).filter(|v| v.is_finite()).fold(0.0, f64::max);
    if bars.is_empty() || max <= 0.0 {
        return None;
    }
    let height = TOP + ROW * bars.len() as f64 + BOTTOM;
    let mut svg = Svg::new(WIDTH, height);
    let length = Length::of(bars, max, powers);
    let scale = |value: f64| LABEL + (WIDTH - LABEL - RIGHT) * length.part(value);
    let how = if matches!(length, Length::Powers { .. }) { ", in powers of ten" } else { "" };
    svg.text((12.0, 22.0), Anchor::Start, "t", &format!("{title} ({unit}{how})"));
    let base = TOP + ROW * bars.len() as f64;
    for at in length.marks() {
        svg.line((scale(at), TOP - 4.0), (scale(at), base + 4.0), "grid");
        svg.text((scale(at), base + 18.0), Anchor::Middle, "s", &figure(at));
    }
    for (index, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let middle = y + ROW / 2.0 - 1.0;
        let colour = COLOURS[bar.colour % COLOURS.len()];
        let hint = format!("{}: {} {unit} {}", bar.label, figure(bar.value), bar.note);
        svg.text((LABEL - 8.0, middle + 4.0), Anchor::End, "l", &short(&bar.label));
        svg.rect((LABEL, y + 3.0), (scale(bar.value) - LABEL, ROW - 8.0), colour, &hint);
        if let Some((min, max)) = bar.range {
            svg.line((scale(min), middle), (scale(max), middle), "whisker");
            for end in [min, max] {
                svg.line((scale(end), middle - 4.0), (scale(end), middle + 4.0), "whisker");
            }
        }
        if let Some(mark) = bar.mark {
            svg.line((scale(mark), y + 1.0), (scale(mark), y + ROW - 3.0), "mark");
        }
        let last = bar.range.map_or(bar.value, |(_, max)| max).max(bar.value).max(bar.mark.unwrap_or(0.0));
        let note = if bar.note.is_empty() { figure(bar.value) } else { bar.note.clone() };
        svg.text((scale(last) + 8.0, middle + 4.0), Anchor::Start, "s", &note);
    }
    if let Some((value, label)) = reference {
        svg.line((scale(value), TOP - 8.0), (scale(value), base + 2.0), "ref");
        svg.text((scale(value) - 4.0, TOP - 10.0), Anchor::End, "s", label);
    }
    svg.line((LABEL, TOP - 4.0), (LABEL, base + 4.0), "axis");
    Some(svg.finish())
}

/// How the horizontal axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Across {
    /// Quantiles, each further nine as wide as the one before.
    Quantiles,
    /// From 0 on.
    Linear,
}

/// Where a quantile lies: how many nines it has.
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-9).log10()
}

/// Lines over one another; the vertical axis goes in powers of ten.
#[must_use]
pub fn curves(title: &str, units: (&str, &str), across: Across, curves: &[Curve]) -> Option<String> {
    let points = || curves.iter().flat_map(|curve| curve.points.iter()).filter(|(_, y)| *y > 0.0);
    let low = points().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
    let high = points().map(|(_, y)| *y).fold(0.0, f64::max);
    let place = |x: f64| if across == Across::Quantiles { nines(x) } else { x };
    let last = points().map(|(x, _)| place(*x)).fold(0.0, f64::max);
    if !low.is_finite() || last <= 0.0 {
        return None;
    }
    let (bottom, top) = (low.log10().floor(), (high.log10().ceil()).max(low.log10().floor() + 1.0));
    let legend = TOP + PLOT_HEIGHT + BOTTOM + 12.0;
    let mut svg = Svg::new(WIDTH, legend + 18.0 * curves.len() as f64 + 8.0);
    let x = |value: f64| LEFT + (WIDTH - LEFT - 40.0) * place(value) / last;
    let y = |value: f64| TOP + PLOT_HEIGHT * (1.0 - (value.log10() - bottom) / (top - bottom));
    svg.text((12.0, 22.0), Anchor::Start, "t", &format!("{title} ({})", units.1));
    let mut power = bottom;
    while power <= top {
        let value = 10_f64.powf(power);
        svg.line((LEFT, y(value)), (WIDTH - 40.0, y(value)), "grid");
        svg.text((LEFT - 8.0, y(value) + 4.0), Anchor::End, "s", &figure(value));
        power += 1.0;
    }
    let (ticks, named): (Vec<f64>, fn(f64) -> String) = match across {
        Across::Quantiles => {
            (vec![0.0, 0.5, 0.9, 0.99, 0.999, 0.999_9, 0.999_99], |q| format!("p{}", figure_percent(q)))
        }
        Across::Linear => ((0..=6).map(|tick| f64::from(tick) * step(last)).collect(), figure),
    };
    for tick in ticks.into_iter().filter(|tick| place(*tick) <= last * 1.000_1) {
        svg.line((x(tick), TOP), (x(tick), TOP + PLOT_HEIGHT), "grid");
        svg.text((x(tick), TOP + PLOT_HEIGHT + 16.0), Anchor::Middle, "s", &named(tick));
    }
    svg.text((WIDTH - 40.0, TOP + PLOT_HEIGHT + 32.0), Anchor::End, "s", units.0);
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[curve.colour % COLOURS.len()];
        let line: Vec<(f64, f64)> = curve
            .points
            .iter()
            .filter(|(_, value)| *value > 0.0)
            .map(|(q, value)| (x(*q), y(*value)))
            .collect();
        svg.path(&line, colour, curve.dashed);
        for ((at, value), place) in curve.points.iter().filter(|(_, value)| *value > 0.0).zip(&line) {
            svg.dot(
                *place,
                colour,
                &format!("{} at {}: {} {}", curve.label, figure(*at), figure(*value), units.1),
            );
        }
        let row = legend + 18.0 * index as f64;
        svg.path(&[(LEFT, row - 4.0), (LEFT + 28.0, row - 4.0)], colour, curve.dashed);
        svg.text((LEFT + 36.0, row), Anchor::Start, "l", &curve.label);
    }
    svg.line((LEFT, TOP), (LEFT, TOP + PLOT_HEIGHT), "axis");
    svg.line((LEFT, TOP + PLOT_HEIGHT), (WIDTH - 40.0, TOP + PLOT_HEIGHT), "axis");
    Some(svg.finish())
}

/// `99.9` of 0.999.
fn figure_percent(quantile: f64) -> String {
    let text = format!("{:.3}", quantile * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, value: f64) -> Bar {
        Bar {
            label: label.to_owned(),
            value,
            range: Some((value * 0.9, value * 1.1)),
            mark: None,
            note: String::new(),
            colour: 0,
        }
    }

    #[test]
    fn figures_have_the_digits_one_reads() {
        for (value, text) in [
            (0.0, "0"),
            (0.312_7, "0.313"),
            (2.345, "2.35"),
            (23.45, "23.4"),
            (1_234.5, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1_000.0, "-1,000"),
        ] {
            assert_eq!(figure(value), text, "{value}");
        }
    }

    #[test]
    fn steps_are_round() {
        assert_eq!((step(10.0), step(37.0), step(0.3)), (2.0, 10.0, 0.1));
    }

    #[test]
    fn a_chart_of_nothing_is_none() {
        assert!(bars(("t", "u"), &[], None, true).is_none());
        assert!(bars(("t", "u"), &[bar("a", 0.0)], None, true).is_none());
        assert!(curves("t", ("x", "y"), Across::Linear, &[]).is_none());
        let flat = Curve { label: "a".into(), points: vec![(0.0, 0.0)], dashed: false, colour: 0 };
        assert!(curves("t", ("x", "y"), Across::Quantiles, &[flat]).is_none());
    }

    #[test]
    fn bars_that_are_far_apart_go_in_powers_of_ten() {
        let far = [bar("a", 0.4), bar("b", 555.0), bar("c", 0.0)];
        let length = Length::of(&far, 555.0, true);
        assert_eq!(length, Length::Powers { low: -1.0, high: 3.0 });
        assert_eq!(length.marks(), [0.1, 1.0, 10.0, 100.0, 1_000.0]);
        assert_eq!((length.part(0.1), length.part(10.0), length.part(0.0)), (0.0, 0.5, 0.0));
        assert!(bars(("t", "u"), &far, None, true).unwrap().contains("t (u, in powers of ten)"));
        assert!(bars(("t", "u"), &far, None, false).unwrap().contains("t (u)"));
        assert!(bars(("t", "u"), &[bar("a", 60.0), bar("b", 555.0)], None, true).unwrap().contains("t (u)"));
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let picture =
            bars(("t", "u"), &[bar("a", 100.0), bar("b", 50.0)], Some((110.0, "disk")), true).unwrap();
        let widths: Vec<f64> = picture
            .split("<rect ")
            .skip(2)
            .map(|part| part.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!((widths[0] - 2.0 * widths[1]).abs() < 0.2, "{widths:?}");
        assert!(picture.contains("disk"));
    }

    #[test]
    fn a_long_label_is_cut_in_its_middle() {
        let label = "a".repeat(30) + &"b".repeat(30);
        let cut = short(&label);
        assert!(cut.chars().count() <= LABEL_CHARS && cut.starts_with("aaa") && cut.ends_with("bbb"));
    }
}
