//! A screen of a terminal as an SVG, for the documentation: what was really written there, with its colours.

use std::fmt::Write as _;
use vt100::{Color, Screen};

const CELL: (f32, f32) = (8.43, 18.0);
const MARGIN: f32 = 12.0;
const INK: &str = "#d4d4d4";
const PAPER: &str = "#1e1e1e";
/// The sixteen colours that programs name by number.
const NAMED: [&str; 16] = [
    "#3c3c3c", "#f14c4c", "#23d18b", "#e5c07b", "#3b8eea", "#d670d6", "#29b8db", "#d4d4d4", "#7f7f7f", "#ff6b6b",
    "#5af2b0", "#f5f543", "#6cb0ff", "#f08df0", "#5fd7ff", "#ffffff",
];

/// What cells that are written together have in common.
#[derive(Clone, PartialEq)]
struct Style {
    ink: String,
    paper: String,
    bold: bool,
}

fn color(color: Color, default: &str) -> String {
    match color {
        Color::Default => default.to_owned(),
        Color::Idx(index) => NAMED
            .get(usize::from(index))
            .map_or_else(|| cube(index), |&name| name.to_owned()),
        Color::Rgb(red, green, blue) => format!("#{red:02x}{green:02x}{blue:02x}"),
    }
}

/// The colours from 16: a cube with six steps a side, then shades of grey.
fn cube(index: u8) -> String {
    let step = |value: u8| if value == 0 { 0 } else { 55 + 40 * value };
    let [red, green, blue] = match index {
        232.. => [8 + 10 * (index - 232); 3],
        _ => {
            let index = index.saturating_sub(16);
            [step(index / 36), step(index / 6 % 6), step(index % 6)]
        }
    };
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The first `rows` rows.
pub fn svg(screen: &Screen, rows: u16) -> String {
    let (_, columns) = screen.size();
    let columns = columns.get();
    let (width, height) = (
        f32::from(columns) * CELL.0 + 2.0 * MARGIN,
        f32::from(rows) * CELL.1 + 2.0 * MARGIN,
    );
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{PAPER}\"/>\n\
         <g font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\" xml:space=\"preserve\">\n"
    );
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            let begin = column;
            let Some(style) = style_at(screen, row, column) else {
                break;
            };
            let mut text = String::new();
            while column < columns && style_at(screen, row, column).as_ref() == Some(&style) {
                if let Some(cell) = screen.cell(row, column).filter(|cell| !cell.is_wide_continuation()) {
                    text.push_str(if cell.has_contents() { cell.contents() } else { " " });
                }
                column += 1;
            }
            piece(&mut out, (row, begin, column - begin), &style, &text);
        }
    }
    out.push_str("</g>\n</svg>\n");
    out
}

fn style_at(screen: &Screen, row: u16, column: u16) -> Option<Style> {
    let cell = screen.cell(row, column)?;
    let (mut ink, mut paper) = (color(cell.fgcolor(), INK), color(cell.bgcolor(), PAPER));
    if cell.inverse() {
        std::mem::swap(&mut ink, &mut paper);
    }
    if cell.dim() {
        ink = "#8a8a8a".into();
    }
    Some(Style {
        ink,
        paper,
        bold: cell.bold(),
    })
}

fn piece(out: &mut String, (row, column, count): (u16, u16, u16), style: &Style, text: &str) {
    let (left, top) = (MARGIN + f32::from(column) * CELL.0, MARGIN + f32::from(row) * CELL.1);
    let width = f32::from(count) * CELL.0;
    // Writing to a string cannot fail.
    if style.paper != PAPER {
        let _ = writeln!(
            out,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
            CELL.1, style.paper
        );
    }
    if text.trim().is_empty() {
        return;
    }
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let bold = if style.bold { " font-weight=\"bold\"" } else { "" };
    // The length is given, so that columns stand below each other with any font.
    let _ = writeln!(
        out,
        "<text x=\"{left:.1}\" y=\"{:.1}\" textLength=\"{width:.1}\" fill=\"{}\"{bold}>{text}</text>",
        top + 13.5,
        style.ink
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU16;

    #[test]
    fn what_is_on_the_screen_is_in_the_picture_with_its_colours() {
        let side = |side| NonZeroU16::new(side).expect("not zero");
        let mut parser = vt100::Parser::new(side(2), side(20), 0);
        parser.process("a<b \x1b[1;31mred\x1b[0m \x1b[7mback\x1b[0m\r\n\x1b[38;5;196mcube\x1b[0m".as_bytes());
        let picture = svg(parser.screen(), 2);
        for words in [
            ">a&lt;b </text>",
            "fill=\"#f14c4c\" font-weight=\"bold\">red</text>",
            "fill=\"#d4d4d4\"/>",
            "fill=\"#1e1e1e\">back</text>",
            "fill=\"#ff0000\">cube</text>",
        ] {
            assert!(picture.contains(words), "{words}: {picture}");
        }
    }
}
