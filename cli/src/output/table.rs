//! Tables for people: no borders, cut with `…` to the width of the terminal.

use super::Output;
use super::text::clean;
use comfy_table::{Cell, Color, ColumnConstraint, Row, Table, Width, presets};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Between two columns.
const GAP: u16 = 2;

/// One column and what may happen to it on a narrow terminal.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    /// Never narrower than this, or than its content; 0: never cut.
    min: u16,
    /// Left out when there is no room; the highest goes first, 0 never goes.
    drop: u8,
}

impl Column {
    /// Always shown whole.
    pub const fn whole(title: &'static str) -> Self {
        Self { title, min: 0, drop: 0 }
    }

    /// May be cut down to `min`.
    pub const fn cut(title: &'static str, min: u16) -> Self {
        Self { title, min, drop: 0 }
    }

    /// Left out when there is no room.
    pub const fn droppable(mut self, drop: u8) -> Self {
        self.drop = drop;
        self
    }
}

/// One cell: its text and its colour.
pub type Text = (String, Option<Color>);

/// Plain text of a cell.
pub fn plain(text: impl Into<String>) -> Text {
    (text.into(), None)
}

/// The table as text, one line a row, the title first.
pub fn render(columns: &[Column], rows: &[Vec<Text>], width: Option<u16>, color: bool) -> String {
    let all: Vec<usize> = (0..columns.len()).collect();
    let whole = vec![None; columns.len()];
    let natural = table(columns, rows, &all, &whole, color).column_max_content_widths();
    let widths = match width {
        Some(width) => fit(columns, &natural, width),
        None => natural.iter().map(|&width| Some(width)).collect(),
    };
    let visible: Vec<usize> = all.into_iter().filter(|&index| widths[index].is_some()).collect();
    let mut table = table(columns, rows, &visible, &widths, color);
    for (position, &index) in visible.iter().enumerate() {
        let gap = if position + 1 == visible.len() { 0 } else { GAP };
        if let (Some(column), Some(width)) = (table.column_mut(position), widths[index]) {
            column.set_padding((0, gap));
            column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width + gap)));
        }
    }
    let lines: Vec<String> = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    lines.concat()
}

/// Writes the table to stdout; `wide` is never cut.
pub fn print(columns: &[Column], rows: &[Vec<Text>], output: &Output) {
    let width = if output.format == crate::args::Format::Wide {
        None
    } else {
        output.width
    };
    super::data(render(columns, rows, width, output.color).as_bytes());
}

/// As [`print`]; where there are no rows, a note beside it says so.
pub fn print_or(columns: &[Column], rows: &[Vec<Text>], output: &Output, none: &str) {
    print(columns, rows, output);
    if rows.is_empty() {
        output.note(none);
    }
}

/// The text, or its beginning with `…` where it has more columns: in the middle of a word too, for a few letters more say more than a
/// blank. Without control characters.
fn cut(text: &str, width: Option<u16>) -> String {
    let text = clean(text);
    let width = width.map_or(usize::MAX, usize::from);
    if text.width() <= width {
        return text;
    }
    let mut left = width.saturating_sub(1);
    let mut short = String::new();
    for c in text.chars() {
        let columns = c.width().unwrap_or(0);
        if columns > left {
            break;
        }
        left -= columns;
        short.push(c);
    }
    short.truncate(short.trim_end().len());
    short.push('…');
    short
}

fn table(columns: &[Column], rows: &[Vec<Text>], visible: &[usize], widths: &[Option<u16>], color: bool) -> Table {
    let mut table = Table::new();
    // What is a terminal, and how wide, is decided by the caller alone.
    table.load_style(presets::NOTHING).force_no_tty();
    if color {
        table.enforce_styling();
    }
    let titles = visible.iter().map(|&index| cut(columns[index].title, widths[index]));
    let mut header = Row::from(titles.collect::<Vec<_>>());
    header.max_height(1);
    table.set_header(header);
    for row in rows {
        let cells = visible.iter().filter_map(|&index| {
            let (text, color) = row.get(index)?;
            let cell = Cell::new(cut(text, widths[index]));
            Some(match color {
                Some(color) => cell.fg(*color),
                None => cell,
            })
        });
        let mut row = Row::from(cells.collect::<Vec<_>>());
        row.max_height(1);
        table.add_row(row);
    }
    table
}

/// The width of each column, `None` for one that is left out.
fn fit(columns: &[Column], natural: &[u16], available: u16) -> Vec<Option<u16>> {
    let min = |index: usize| match columns[index].min {
        0 => natural[index],
        min => natural[index].min(min),
    };
    let mut visible: Vec<usize> = (0..columns.len()).collect();
    loop {
        let gaps = GAP * u16::try_from(visible.len().saturating_sub(1)).unwrap_or(u16::MAX);
        let room = available.saturating_sub(gaps);
        let least: u32 = visible.iter().map(|&index| u32::from(min(index))).sum();
        let goes = visible
            .iter()
            .copied()
            .filter(|&index| columns[index].drop > 0)
            .max_by_key(|&index| columns[index].drop);
        match goes {
            Some(index) if least > u32::from(room) => visible.retain(|&other| other != index),
            _ => {
                let mut widths = vec![None; columns.len()];
                for &index in &visible {
                    widths[index] = Some(min(index));
                }
                settle(&mut widths, natural, room);
                return widths;
            }
        }
    }
}

/// Gives what is left to the narrowest columns that need more, or takes from the widest where nothing is left.
fn settle(widths: &mut [Option<u16>], natural: &[u16], room: u16) {
    let mut used: u32 = widths.iter().flatten().map(|&width| u32::from(width)).sum();
    while used > u32::from(room) {
        match widths
            .iter_mut()
            .flatten()
            .filter(|width| **width > 1)
            .max_by_key(|width| **width)
        {
            Some(width) => *width -= 1,
            None => return,
        }
        used -= 1;
    }
    while used < u32::from(room) {
        let needy = widths
            .iter_mut()
            .zip(natural)
            .filter_map(|(width, &natural)| width.as_mut().filter(|width| **width < natural));
        match needy.min_by_key(|width| **width) {
            Some(width) => *width += 1,
            None => return,
        }
        used += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 5] = [
        Column::whole("ID"),
        Column::whole("STATE"),
        Column::cut("NAME", 8).droppable(1),
        Column::whole("RUNNER").droppable(3),
        Column::cut("WHY / OUTCOME", 10),
    ];

    fn rows() -> Vec<Vec<Text>> {
        vec![
            vec![
                plain("1851"),
                ("TERMINATING".into(), Some(Color::Magenta)),
                plain("gpu-train-with-a-long-name"),
                plain("etl-2/1"),
                plain("no live runner has gpu=1 (gpu-03 lost 04:11)"),
            ],
            vec![
                plain("1"),
                plain("RUNNING"),
                plain("日本語の名前はとても長いです"),
                plain(""),
                plain(""),
            ],
        ]
    }

    fn columns_of(line: &str) -> usize {
        // Wide characters take two columns.
        line.chars().map(|c| if c.is_ascii() || c == '…' { 1 } else { 2 }).sum()
    }

    #[test]
    fn a_table_fits_40_columns_and_keeps_id_and_state() {
        let text = render(&COLUMNS, &rows(), Some(40), false);
        for line in text.lines() {
            assert!(columns_of(line) <= 40, "{} columns: {line:?}", columns_of(line));
        }
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("1851  TERMINATING  ") && text.contains('…'), "{text}");
        assert!(!text.contains("RUNNER"), "{text}");
    }

    #[test]
    fn any_width_is_kept() {
        for width in 10..=120 {
            for line in render(&COLUMNS, &rows(), Some(width), false).lines() {
                assert!(columns_of(line) <= usize::from(width), "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn without_a_width_nothing_is_cut() {
        let text = render(&COLUMNS, &rows(), None, false);
        assert!(text.contains("no live runner has gpu=1 (gpu-03 lost 04:11)"), "{text}");
        assert!(
            text.contains("日本語の名前はとても長いです") && !text.contains('…'),
            "{text}"
        );
    }

    #[test]
    fn a_cell_cannot_break_the_line_or_colour_it() {
        let rows = vec![vec![
            plain("1"),
            plain("X"),
            plain("a\nb"),
            plain("\x1b[31m"),
            plain("z"),
        ]];
        let text = render(&COLUMNS, &rows, Some(80), false);
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(!text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn a_cut_uses_all_the_columns_that_there_are() {
        for (text, width, expected) in [
            ("no live runner", 20, "no live runner"),
            ("no live runner", 14, "no live runner"),
            ("no live runner", 10, "no live r…"),
            ("no live runner", 9, "no live…"),
            ("日本語の名前", 6, "日本…"),
            ("日本語の名前", 7, "日本語…"),
            ("abc", 1, "…"),
        ] {
            assert_eq!(cut(text, Some(width)), expected, "{width}");
        }
    }

    #[test]
    fn an_empty_table_has_its_titles() {
        assert_eq!(
            render(&COLUMNS, &[], None, false).trim_end(),
            "ID  STATE  NAME  RUNNER  WHY / OUTCOME"
        );
    }
}
