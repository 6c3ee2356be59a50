//! The pseudo-terminal of a task that asks for one.

use crate::error::Invalid;
use serde::{Deserialize, Serialize};

/// Lines and columns at most.
pub const SIDE_MAX: u32 = 10_000;

/// Its size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    pub rows: u32,
    pub columns: u32,
}

impl Default for Terminal {
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

impl Terminal {
    pub fn validate(&self) -> Result<(), Invalid> {
        for (side, field) in [(self.rows, "tty.rows"), (self.columns, "tty.columns")] {
            if side == 0 || side > SIDE_MAX {
                return Err(Invalid::new(field, format!("is {side}; give 1 to {SIDE_MAX}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_makes_no_sense_is_refused_by_its_side() {
        assert_eq!(Terminal::default().validate(), Ok(()));
        let refused = |rows, columns| Terminal { rows, columns }.validate().map_err(|invalid| invalid.field);
        assert_eq!(refused(0, 80), Err("tty.rows".into()));
        assert_eq!(refused(24, SIDE_MAX + 1), Err("tty.columns".into()));
        assert_eq!(refused(SIDE_MAX, 1), Ok(()));
    }
}
