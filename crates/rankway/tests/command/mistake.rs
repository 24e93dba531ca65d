//! Every mistake is answered by one line that says what to do: exit code 2 where the command has to change,
//! 1 where something else has to.

use crate::process::{Ended, run};

pub(crate) const WRONG_USE: i32 = 2;
pub(crate) const FAILED: i32 = 1;
/// Whatever is logged besides errors is not the answer.
const QUIET: (&str, &str) = ("RANKWAY_LOG", "error");
pub(crate) const POLICIES: &[&str] = &[
    "round_robin",
    "random",
    "target_round_robin",
    "power_of_two",
    "kv",
];

/// One mistake. Words are split at spaces.
pub(crate) struct Mistake<'a> {
    pub(crate) command: &'a str,
    pub(crate) code: i32,
    pub(crate) says: &'a [&'a str],
}

pub(crate) const fn wrong<'a>(command: &'a str, says: &'a [&'a str]) -> Mistake<'a> {
    Mistake {
        command,
        code: WRONG_USE,
        says,
    }
}

pub(crate) const fn fails<'a>(command: &'a str, says: &'a [&'a str]) -> Mistake<'a> {
    Mistake {
        command,
        code: FAILED,
        says,
    }
}

impl Mistake<'_> {
    pub(crate) async fn check(&self, variables: &[(&str, &str)]) {
        let args: Vec<&str> = self.command.split_whitespace().collect();
        let ended = run(&args, &[variables, &[QUIET]].concat()).await;
        self.check_answer(&ended, variables);
    }

    pub(crate) fn check_answer(&self, ended: &Ended, variables: &[(&str, &str)]) {
        let what = format!("{variables:?} {}:\n{}", self.command, ended.stderr);
        assert_eq!(ended.code, Some(self.code), "{what}");
        let lines: Vec<&str> = ended.stderr.lines().collect();
        // The parser of flags adds its usage below.
        let parser = ended.stderr.starts_with("error: ");
        assert!(parser || lines.len() == 1, "more than a line: {what}");
        assert!(parser || lines[0].starts_with("rankway: "), "{what}");
        for part in self.says {
            assert!(lines[0].contains(part), "no {part:?}: {what}");
        }
        assert!(!lines[0].contains(".rs:"), "a place in the code: {what}");
    }
}
