//! Drawing as text. Scope: one picture at a time.
//! Owns: escaping, the elements used by charts.
//! Invariants: what is drawn is well-formed whatever the labels hold; numbers are finite and have one decimal.
//! Not here: what a chart looks like (`charts`).

use std::fmt::Write as _;

/// Text for an element or an attribute. Characters that XML does not know become a question mark.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// Where a text is anchored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// A growing picture.
#[derive(Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

fn number(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

impl Svg {
    #[must_use]
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    pub fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str, hint: &str) {
        let (x, y, width, height) = (number(x), number(y), number(width).max(0.0), number(height).max(0.0));
        // Writing into a string does not fail.
        let _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\">\
             <title>{}</title></rect>",
            escape(hint)
        );
    }

    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let _ = write!(
            self.body,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" class=\"{class}\"/>",
            number(x1),
            number(y1),
            number(x2),
            number(y2)
        );
    }

    pub fn path(&mut self, points: &[(f64, f64)], stroke: &str, dashed: bool) {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{:.1},{:.1}", number(*x), number(*y))).collect();
        let dash = if dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        let _ = write!(
            self.body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"2\"{dash}/>",
            points.join(" ")
        );
    }

    pub fn dot(&mut self, (x, y): (f64, f64), fill: &str, hint: &str) {
        let _ = write!(
            self.body,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{fill}\"><title>{}</title></circle>",
            number(x),
            number(y),
            escape(hint)
        );
    }

    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = write!(
            self.body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
            number(x),
            number(y),
            escape(text)
        );
    }

    /// The element; it carries its own style, so that it is also a picture alone.
    #[must_use]
    pub fn finish(self) -> String {
        let (width, height) = (self.width, self.height);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\"><style>{STYLE}</style>\
             <rect x=\"0\" y=\"0\" width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>{}</svg>\n",
            self.body
        )
    }
}

const STYLE: &str = "text{font-family:system-ui,sans-serif;font-size:12px;fill:#1f2933}\
.t{font-size:14px;font-weight:600}.s{fill:#616e7c;font-size:11px}\
.grid{stroke:#e4e7eb;stroke-width:1}.axis{stroke:#7b8794;stroke-width:1}\
.whisker{stroke:#1f2933;stroke-width:1.5}.mark{stroke:#ba2525;stroke-width:2}\
.ref{stroke:#ba2525;stroke-width:1.5;stroke-dasharray:6 4}";
