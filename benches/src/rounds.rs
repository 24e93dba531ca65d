//! Measuring the structures in turns, so that what disturbs the machine disturbs them all.

use std::collections::BTreeMap;

use crate::clock::median;
use crate::contest::Kind;
use crate::report::Row;

/// Figures of several rounds, by case and structure.
#[derive(Debug, Default)]
pub struct Rounds {
    /// In the order in which the cases were first seen.
    cases: Vec<(String, &'static str)>,
    figures: BTreeMap<(usize, Kind), Vec<f64>>,
}

impl Rounds {
    /// Notes one figure.
    pub fn note(&mut self, case: &str, unit: &'static str, kind: Kind, figure: f64) {
        let known = self.cases.iter().position(|(it, _)| it == case);
        let case = known.unwrap_or_else(|| {
            self.cases.push((case.to_owned(), unit));
            self.cases.len() - 1
        });
        self.figures.entry((case, kind)).or_default().push(figure);
    }

    /// The medians, as a row for each case.
    pub fn rows(self, targets: u32, depth: usize) -> Vec<Row> {
        let row = |(at, (case, unit)): (usize, &(String, &'static str))| Row {
            case: case.clone(),
            targets,
            depth,
            unit,
            of: (self.figures.iter())
                .filter(|((case, _), _)| *case == at)
                .map(|((_, kind), figures)| (*kind, median(figures.clone())))
                .collect(),
        };
        self.cases.iter().enumerate().map(row).collect()
    }
}

/// `all` in another order each round.
pub fn turns<T: Copy>(all: &[T], round: usize) -> impl Iterator<Item = T> {
    let from = round % all.len().max(1);
    all[from..].iter().chain(&all[..from]).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_the_median_of_each_structure() {
        let mut rounds = Rounds::default();
        for figure in [3.0, 9.0, 4.0] {
            rounds.note("store", "ns", Kind::Ours, figure);
            rounds.note("store", "ns", Kind::Crtc, 2.0 * figure);
        }

        let rows = rounds.rows(8, 32);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].of, [(Kind::Ours, 4.0), (Kind::Crtc, 8.0)].into());
        assert_eq!(rows[0].ratio(Kind::Crtc), Some(2.0));
    }

    #[test]
    fn everybody_has_every_turn() {
        let firsts: Vec<u8> = (0..3)
            .filter_map(|it| turns(&[1, 2, 3], it).next())
            .collect();

        assert_eq!(firsts, [1, 2, 3]);
        assert_eq!(turns(&[1, 2, 3], 2).collect::<Vec<u8>>(), [3, 1, 2]);
    }
}
