//! Lists that come in pages: how far to read, and what to say of the rest.

use crate::output::Output;

/// Rows of a table when nobody says otherwise.
const TABLE_ROWS: u64 = 20;

pub struct Pages {
    /// Nobody said how many.
    by_default: bool,
    limit: u64,
    /// Items of one call.
    size: u64,
    count: u64,
    token: String,
}

impl Pages {
    /// As many as were asked for; without that a screenful for people and all for programs. `size`: the items of one call.
    pub fn new(asked: Option<u64>, for_people: bool, size: u64) -> Self {
        Self {
            by_default: asked.is_none(),
            limit: asked.unwrap_or(if for_people { TABLE_ROWS } else { u64::MAX }),
            size,
            count: 0,
            token: String::new(),
        }
    }

    /// How many the next call asks for.
    pub fn limit(&self) -> u32 {
        u32::try_from((self.limit - self.count).min(self.size)).unwrap_or(0)
    }

    /// Where the next call begins.
    pub fn token(&mut self) -> String {
        std::mem::take(&mut self.token)
    }

    /// A page of so many came, and where the next one begins; empty: there is none. Whether that is to be asked for.
    pub fn go_on(&mut self, got: usize, next: String) -> bool {
        self.count = self.count.saturating_add(got as u64).min(self.limit);
        self.token = next;
        self.has_more() && self.count < self.limit
    }

    fn has_more(&self) -> bool {
        !self.token.is_empty()
    }

    /// Says that these are not all, where nobody asked for as many.
    pub fn tell_rest(&self, output: &Output) {
        if self.has_more() && self.by_default {
            output.note(&format!("the newest {TABLE_ROWS} are shown; -n shows more"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked of a list with so many items.
    fn asked(mut pages: Pages, all: usize) -> (Vec<u32>, bool) {
        let (mut calls, mut at) = (Vec::new(), 0);
        loop {
            assert_eq!(pages.token(), if at == 0 { String::new() } else { at.to_string() });
            calls.push(pages.limit());
            let got = usize::try_from(pages.limit()).expect("small").min(all - at);
            at += got;
            let next = if at < all { at.to_string() } else { String::new() };
            if !pages.go_on(got, next) {
                return (calls, pages.has_more());
            }
        }
    }

    #[test]
    fn pages_are_read_up_to_what_is_wanted() {
        assert_eq!(asked(Pages::new(None, true, 200), 15), (vec![20], false));
        assert_eq!(asked(Pages::new(None, true, 200), 21), (vec![20], true));
        assert_eq!(asked(Pages::new(None, false, 200), 450), (vec![200, 200, 200], false));
        assert_eq!(asked(Pages::new(Some(250), true, 200), 450), (vec![200, 50], true));
        assert_eq!(
            asked(Pages::new(Some(450), true, 200), 450),
            (vec![200, 200, 50], false)
        );
    }
}
