//! How the model of `systole top` looks on a screen of any size. Tables are those of `ls` and `runners`: columns go where there is
//! no room.

use super::log::From;
use super::model::{Host, Model, Pane};
use crate::commands::ls;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{color, text};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Wrap};
use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::plural::counted;
use systole_shared::time::format_duration;

const HOST_COLUMNS: [Column; 6] = [
    Column::cut("HOST", 12),
    Column::whole("STATE"),
    Column::whole("BUSY"),
    Column::whole("SLOTS").droppable(3),
    Column::cut("LABELS", 8).droppable(2),
    Column::cut("NOTE", 8).droppable(1),
];

const KEYS: [(&str, &str); 12] = [
    ("↑ ↓ PgUp PgDn g G", "select, or scroll the output"),
    ("Tab", "to the hosts, to the output, and back"),
    ("Enter", "at a host: only its tasks"),
    ("f", "all, waiting, running, failed, ended"),
    ("Esc", "all tasks of all hosts"),
    ("c", "cancel the selected task; asks"),
    ("r", "run it once more when it has ended; asks"),
    ("w", "why it waits, or what became of it"),
    ("l", "the output, or no output"),
    ("? h", "this"),
    ("q Ctrl-C", "quit; nothing ends with it"),
    ("", "any key goes back"),
];

/// Where what is, in rows from the top.
struct Areas {
    head: Rect,
    hosts: Rect,
    tasks: Rect,
    log: Rect,
    foot: Rect,
}

/// What is focused gets most of a small screen; on one that is too small for three panes the others go.
fn areas(area: Rect, model: &Model) -> Areas {
    let foot = foot_rows(model, area.width);
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(foot)]).areas(area);
    let lower = model.show_logs || model.why.is_some();
    let small = body.height < 14;
    let (hosts, log) = match model.pane {
        Pane::Hosts if small => (body.height, 0),
        Pane::Logs if small => (0, body.height),
        Pane::Tasks if small => (0, if lower { body.height / 2 } else { 0 }),
        pane => {
            let rows = u16::try_from(model.hosts.len()).unwrap_or(u16::MAX).saturating_add(1);
            let hosts = rows.min(if pane == Pane::Hosts {
                body.height / 2
            } else {
                body.height / 4
            });
            let part = if pane == Pane::Logs {
                body.height / 2
            } else {
                body.height / 3
            };
            (hosts, if lower { part } else { 0 })
        }
    };
    let [hosts, tasks, log] =
        Layout::vertical([Constraint::Length(hosts), Constraint::Min(0), Constraint::Length(log)]).areas(body);
    Areas {
        head,
        hosts,
        tasks,
        log,
        foot,
    }
}

pub fn draw(frame: &mut Frame<'_>, model: &Model, colored: bool) {
    let areas = areas(frame.area(), model);
    frame.render_widget(Paragraph::new(head(model, colored)), areas.head);
    hosts(frame, areas.hosts, model, colored);
    tasks(frame, areas.tasks, model, colored);
    log(frame, areas.log, model, colored);
    frame.render_widget(
        Paragraph::new(foot(model, colored)).wrap(Wrap { trim: true }),
        areas.foot,
    );
    if model.help {
        help(frame);
    }
}

fn tint(style: Style, color: Color, colored: bool) -> Style {
    if colored { style.fg(color) } else { style }
}

fn head(model: &Model, colored: bool) -> Vec<Line<'static>> {
    let shown = match &model.question.host {
        Some(host) => format!("{} of {host}", model.question.show.name()),
        None => model.question.show.name().to_owned(),
    };
    let title = format!("{shown} tasks at {}", model.place);
    let mut second = if model.trouble.is_empty() {
        Line::raw(model.status.as_ref().map(counts).unwrap_or_default())
    } else {
        let style = tint(Style::new().add_modifier(Modifier::BOLD), Color::Red, colored);
        Line::styled(text::clean(&model.trouble), style)
    };
    let needs = model.status.as_ref().map_or(0, |status| status.attention.len());
    if model.trouble.is_empty() && needs > 0 {
        let style = tint(Style::new().add_modifier(Modifier::BOLD), Color::Red, colored);
        second
            .spans
            .insert(0, Span::styled(format!("{needs} need you (systole status)  "), style));
    }
    vec![
        Line::styled(text::clean(&title), Style::new().add_modifier(Modifier::BOLD)),
        second,
    ]
}

fn counts(status: &v1::StatusResponse) -> String {
    let hosts = status.hosts.unwrap_or_default();
    let mut parts = vec![format!("{} running", status.running)];
    if status.queued > 0 {
        parts.push(format!(
            "{} queued, oldest {}",
            status.queued,
            format_duration(status.oldest_queued_ms)
        ));
    }
    parts.push(format!("{} of {} busy", hosts.busy, counted(hosts.slots, "slot")));
    let counted: Vec<String> = [
        (hosts.ready, "ready"),
        (hosts.cordoned, "cordoned"),
        (hosts.faulty, "faulty"),
        (hosts.lost, "lost"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, word)| format!("{count} {word}"))
    .collect();
    if !counted.is_empty() {
        parts.push(format!("hosts: {}", counted.join(", ")));
    }
    parts.join(" · ")
}

/// Rows of a table that are seen: the title, and a window that the selected row is in.
fn window(rows: usize, selected: usize, height: u16) -> std::ops::Range<usize> {
    let height = usize::from(height).saturating_sub(1);
    let begin = selected.saturating_sub(height.saturating_sub(1));
    begin..(begin + height).min(rows)
}

/// A table as lines, of which one is selected. `color_of`: of the word in the second column.
fn table_lines(
    columns: &[Column],
    rows: &[Vec<Text>],
    selected: Option<usize>,
    area: Rect,
    focused: bool,
    colored: bool,
) -> Vec<Line<'static>> {
    let all = table::render(columns, rows, Some(area.width), false);
    let mut all = all.lines();
    let title = all.next().unwrap_or_default().to_owned();
    let underlined = if focused {
        Modifier::BOLD | Modifier::UNDERLINED
    } else {
        Modifier::UNDERLINED
    };
    let mut lines = vec![Line::styled(title, Style::new().add_modifier(underlined))];
    let seen = window(rows.len(), selected.unwrap_or(0), area.height);
    for (index, text) in all.enumerate().skip(seen.start).take(seen.len()) {
        let mut style = Style::new();
        if selected == Some(index) {
            style = style.add_modifier(if focused { Modifier::REVERSED } else { Modifier::BOLD });
        }
        let word = rows.get(index).and_then(|row| row.get(1));
        lines.push(with_word(text, word.filter(|_| colored), style, area.width));
    }
    lines
}

/// The line, the word in it in its colour, filled up so that a selection is a bar.
fn with_word(line: &str, word: Option<&Text>, style: Style, width: u16) -> Line<'static> {
    let padded = format!(
        "{line}{}",
        " ".repeat(usize::from(width).saturating_sub(Span::raw(line).width()))
    );
    let found = word.and_then(|(word, color)| Some((padded.find(word.as_str())?, word.len(), color_of(*color)?)));
    match found {
        Some((at, length, color)) => Line::from(vec![
            Span::styled(padded[..at].to_owned(), style),
            Span::styled(padded[at..at + length].to_owned(), style.fg(color)),
            Span::styled(padded[at + length..].to_owned(), style),
        ]),
        None => Line::styled(padded, style),
    }
}

/// The colours of the tables, as this library names them.
fn color_of(color: Option<comfy_table::Color>) -> Option<Color> {
    Some(match color? {
        comfy_table::Color::Green => Color::Green,
        comfy_table::Color::Red => Color::Red,
        comfy_table::Color::Cyan => Color::Cyan,
        comfy_table::Color::Yellow => Color::Yellow,
        comfy_table::Color::Magenta => Color::Magenta,
        _ => return None,
    })
}

fn host_row(host: &Host) -> Vec<Text> {
    vec![
        plain(host.name.as_str()),
        (host.state.to_owned(), color::of_runner(host.state)),
        plain(host.busy.to_string()),
        plain(host.slots.to_string()),
        plain(host.labels.as_str()),
        plain(host.note.as_str()),
    ]
}

fn hosts(frame: &mut Frame<'_>, area: Rect, model: &Model, colored: bool) {
    if area.height == 0 {
        return;
    }
    let rows: Vec<Vec<Text>> = model.hosts.iter().map(host_row).collect();
    let focused = model.pane == Pane::Hosts;
    let selected = focused.then_some(model.host_row);
    let lines = table_lines(&HOST_COLUMNS, &rows, selected, area, focused, colored);
    frame.render_widget(Paragraph::new(lines), area);
}

fn tasks(frame: &mut Frame<'_>, area: Rect, model: &Model, colored: bool) {
    if area.height == 0 {
        return;
    }
    let rows: Vec<Vec<Text>> = model.tasks.iter().map(|task| ls::row(task, model.now_ms)).collect();
    let selected = model.tasks.iter().position(|task| Some(task.id) == model.selected);
    let mut lines = table_lines(&ls::COLUMNS, &rows, selected, area, model.pane == Pane::Tasks, colored);
    if model.tasks.is_empty() {
        lines.push(Line::raw("no such task"));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn log(frame: &mut Frame<'_>, area: Rect, model: &Model, colored: bool) {
    if area.height == 0 {
        return;
    }
    let focused = model.pane == Pane::Logs;
    let bold = if focused { Modifier::BOLD } else { Modifier::empty() };
    let title = |text: String| {
        let text = format!(
            "{text}{}",
            " ".repeat(usize::from(area.width).saturating_sub(text.chars().count()))
        );
        Line::styled(text, Style::new().add_modifier(bold | Modifier::UNDERLINED))
    };
    let rows = usize::from(area.height) - 1;
    let mut lines = Vec::with_capacity(rows + 1);
    if let Some((task, said)) = &model.why {
        lines.push(title(format!("why {task} (w: back)")));
        lines.extend(said.iter().take(rows).map(|line| Line::raw(line.clone())));
        frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
        return;
    }
    let Some(log) = &model.log else {
        frame.render_widget(Paragraph::new(vec![title("output".into())]), area);
        return;
    };
    let up = match model.scroll {
        0 => String::new(),
        n => format!(", {n} lines up"),
    };
    lines.push(title(format!("output of {}{up}", log.task)));
    let seen = log.window(model.scroll, rows);
    if seen.is_empty() {
        let waits = model
            .task()
            .is_none_or(|task| !state_from_wire(task.state).is_some_and(|state| state.child_is_over()));
        lines.push(Line::raw(if waits { "nothing so far" } else { "it wrote nothing" }));
    }
    for line in seen {
        lines.push(match line.from {
            From::Stdout => Line::raw(line.text),
            From::Stderr => Line::styled(line.text, tint(Style::new(), Color::Yellow, colored)),
            From::Us => Line::styled(line.text, Style::new().add_modifier(Modifier::ITALIC)),
        });
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Rows that the foot takes at most.
const FOOT_ROWS_MAX: u16 = 4;

/// A question, or a word about what was done, is shown whole.
fn foot_rows(model: &Model, width: u16) -> u16 {
    let text = match &model.ask {
        Some(ask) => &ask.text,
        None => &model.note,
    };
    // Words are not broken: a row holds fewer characters than it has columns.
    let columns = Span::raw(text.as_str()).width();
    let rows = columns.div_ceil(usize::from(width.saturating_sub(8).max(1)));
    u16::try_from(rows).unwrap_or(FOOT_ROWS_MAX).clamp(1, FOOT_ROWS_MAX)
}

fn foot(model: &Model, colored: bool) -> Line<'static> {
    if let Some(ask) = &model.ask {
        return Line::styled(
            ask.text.clone(),
            tint(
                Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
                Color::Yellow,
                colored,
            ),
        );
    }
    if !model.note.is_empty() {
        return Line::styled(text::clean(&model.note), Style::new().add_modifier(Modifier::BOLD));
    }
    let more = match (model.more_tasks, model.more_hosts) {
        (true, _) => format!("newest {}  ", model.tasks.len()),
        (_, true) => "not all hosts  ".to_owned(),
        _ => String::new(),
    };
    Line::raw(format!(
        "{more}? help  q quit  f filter  c cancel  r rerun  w why  l output  Tab pane"
    ))
}

fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let lines: Vec<Line<'_>> = KEYS
        .iter()
        .map(|(key, what)| {
            Line::from(vec![
                Span::styled(format!("{key:<18} "), Style::new().add_modifier(Modifier::BOLD)),
                Span::raw(*what),
            ])
        })
        .collect();
    let height = u16::try_from(KEYS.len()).unwrap_or(u16::MAX).min(area.height);
    let place = Rect { height, ..area };
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines), place);
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
