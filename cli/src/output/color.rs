//! Colours: only for states, and only on a terminal.

use comfy_table::Color;
use systole_shared::task::TaskState;

pub fn of_state(state: Option<TaskState>) -> Option<Color> {
    match state? {
        TaskState::Finished => Some(Color::Green),
        TaskState::Failed => Some(Color::Red),
        TaskState::Running | TaskState::Dispatched | TaskState::Callback => Some(Color::Cyan),
        TaskState::Created | TaskState::Queued => Some(Color::Yellow),
        TaskState::Skipped | TaskState::Terminating | TaskState::Terminated => Some(Color::Magenta),
    }
}

pub fn of_runner(state: &str) -> Option<Color> {
    match state {
        "ready" => Some(Color::Green),
        "busy" => Some(Color::Cyan),
        "cordoned" => Some(Color::Yellow),
        "faulty" | "held" => Some(Color::Red),
        "lost" => Some(Color::Red),
        _ => None,
    }
}

/// The text in this colour, as an ANSI sequence.
pub fn paint(text: &str, color: Option<Color>, on: bool) -> String {
    let code = match color {
        Some(Color::Red) => 31,
        Some(Color::Green) => 32,
        Some(Color::Yellow) => 33,
        Some(Color::Magenta) => 35,
        Some(Color::Cyan) => 36,
        _ => return text.to_owned(),
    };
    if on {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colours_nothing_is_added() {
        for state in TaskState::ALL {
            assert_eq!(paint(state.name(), of_state(Some(state)), false), state.name());
            assert!(paint(state.name(), of_state(Some(state)), true).starts_with("\x1b["));
        }
    }
}
