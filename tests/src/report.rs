//! What a scenario measured: rows, one summary, and whether what was to hold held.

use std::fmt;
use std::io::{self, Write};

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Says what is being done to whoever waits, on standard error.
pub(crate) fn progress(what: fmt::Arguments<'_>) {
    // With standard error gone nobody is waiting.
    let _ = writeln!(io::stderr(), "{what} ...");
}

/// What a scenario measured.
pub(crate) struct Report {
    scenario: &'static str,
    ok: bool,
    said: String,
    rows: Vec<Box<RawValue>>,
    figures: Box<RawValue>,
}

/// The last line of `--json`.
#[derive(Serialize)]
struct Summary<'a> {
    scenario: &'static str,
    ok: bool,
    #[serde(flatten)]
    figures: Fields,
    said: &'a str,
}

impl Report {
    /// A report whose summary is `figures`, a flat structure; `ok` follows from it, and `said` is one sentence
    /// of what held or what did not.
    pub(crate) fn new(
        scenario: &'static str,
        ok: bool,
        said: String,
        figures: &impl Serialize,
    ) -> serde_json::Result<Self> {
        Ok(Self {
            scenario,
            ok,
            said,
            rows: Vec::new(),
            figures: serde_json::value::to_raw_value(figures)?,
        })
    }

    /// The same with a row for each of `rows`, flat structures of one type.
    pub(crate) fn with_rows(
        mut self,
        rows: impl IntoIterator<Item = impl Serialize>,
    ) -> serde_json::Result<Self> {
        for row in rows {
            self.rows.push(serde_json::value::to_raw_value(&row)?);
        }
        Ok(self)
    }

    /// Whether what was to hold held.
    pub(crate) const fn ok(&self) -> bool {
        self.ok
    }

    /// One object a line, the summary last.
    pub(crate) fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        for row in &self.rows {
            writeln!(out, "{row}")?;
        }
        let summary = Summary {
            scenario: self.scenario,
            ok: self.ok,
            figures: serde_json::from_str(self.figures.get())?,
            said: &self.said,
        };
        writeln!(out, "{}", serde_json::to_string(&summary)?)
    }

    /// The rows under their names, the summary, and the sentence.
    pub(crate) fn write_table(&self, mut out: impl Write) -> io::Result<()> {
        let rows = self.rows.iter().map(|it| serde_json::from_str(it.get()));
        let rows: Vec<Fields> = rows.collect::<Result<_, _>>()?;
        if let Some(first) = rows.first() {
            let names = first.0.iter().map(|(name, _)| name.clone()).collect();
            let lines = rows.iter().map(Fields::values);
            write_columns(&mut out, std::iter::once(names).chain(lines).collect())?;
            writeln!(out)?;
        }
        let figures: Fields = serde_json::from_str(self.figures.get())?;
        let named = |(name, value): &(String, Value)| vec![name.clone(), text(value)];
        write_columns(&mut out, figures.0.iter().map(named).collect())?;
        let held = if self.ok { "ok" } else { "not ok" };
        writeln!(out, "\n{held}: {}", self.said)
    }
}

/// The fields of an object, in their order.
struct Fields(Vec<(String, Value)>);

impl Fields {
    fn values(&self) -> Vec<String> {
        self.0.iter().map(|(_, value)| text(value)).collect()
    }
}

impl Serialize for Fields {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder)
    }
}

/// Reads an object without sorting it.
struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}

/// A value as a person reads it.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default();
            format!("{number:.3}")
        }
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(text).collect();
            values.join(" ")
        }
        other => other.to_string(),
    }
}

/// Writes lines whose cells stand under each other.
fn write_columns(out: &mut impl Write, lines: Vec<Vec<String>>) -> io::Result<()> {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| lines.iter().filter_map(move |it| it.get(column));
    let width = |column| cells(column).map(|it| it.chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths);
        let cells: Vec<String> = cells.map(|(it, width)| format!("{it:<width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::Report;

    #[derive(Serialize)]
    struct Row {
        seed: u64,
        kept: u32,
    }

    #[derive(Serialize)]
    struct Figures {
        worst: f64,
        among: Vec<u32>,
        unknown: Option<u32>,
    }

    fn report() -> Report {
        let figures = Figures {
            worst: 1.25,
            among: vec![1, 2],
            unknown: None,
        };
        let rows = [Row { seed: 1, kept: 192 }, Row { seed: 10, kept: 3 }];
        let report = Report::new("a-name", false, "3 of 192 stayed".to_owned(), &figures);
        report.unwrap().with_rows(rows).unwrap()
    }

    #[test]
    fn json_is_an_object_a_line_with_the_fields_in_their_order_and_the_summary_last() {
        let mut out = Vec::new();
        report().write_json(&mut out).unwrap();

        let expected = r#"{"seed":1,"kept":192}
{"seed":10,"kept":3}
{"scenario":"a-name","ok":false,"worst":1.25,"among":[1,2],"unknown":null,"said":"3 of 192 stayed"}
"#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn the_table_stands_in_columns_and_ends_with_the_sentence() {
        let mut out = Vec::new();
        report().write_table(&mut out).unwrap();

        let expected = "seed  kept
1     192
10    3

worst    1.250
among    1 2
unknown  -

not ok: 3 of 192 stayed
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
