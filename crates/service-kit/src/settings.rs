//! Settings: defaults, then a file, then the environment, then flags.

use std::fs;
use std::path::Path;

use figment::error::{Actual, Kind};
use figment::providers::{Env, Format, Serialized, Toml};
use figment::util::nest;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider, Source};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Environment variables with this prefix are settings: `RANKWAY_ROUTER__POLICY` is `router.policy`.
pub const ENVIRONMENT_PREFIX: &str = "RANKWAY_";
/// The variable that names the log filter; telemetry reads it, it is no setting.
pub const LOG_VARIABLE: &str = "RANKWAY_LOG";

/// Settings that cannot be used, in one line that names the key and where it comes from.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSettings(String);

/// What there is to know of environment variables before they are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variables<'a> {
    /// Variables, without the prefix, that stand for flags and are no settings.
    pub flags: &'a [&'a str],
    /// Those of them, with the prefix, that stand for the same as a setting's own variable.
    pub same: &'a [(&'a str, &'a str)],
    /// Keys, such as `admin.token`, whose variables are text even where they read as numbers.
    pub texts: &'a [&'a str],
}

/// Reads settings: the type's defaults under `file`, under the environment, under `flags` (a struct or map
/// whose unset values are skipped when serialised).
pub fn load<S: DeserializeOwned>(
    file: Option<&Path>,
    variables: Variables<'_>,
    flags: impl Serialize,
) -> Result<S, InvalidSettings> {
    let mut figment = Figment::new();
    if let Some(path) = file {
        check_syntax(path)?;
        figment = figment.merge(Toml::file_exact(path));
    }
    for (one, other) in variables.same {
        if let (Some(left), Some(right)) = (Env::var(one), Env::var(other))
            && left != right
        {
            let why = format!("{one} and {other} are both set and differ: keep one of them");
            return Err(InvalidSettings(why));
        }
    }
    let environment = Env::prefixed(ENVIRONMENT_PREFIX)
        .ignore(&[&LOG_VARIABLE[ENVIRONMENT_PREFIX.len()..]])
        .ignore(variables.flags)
        .split("__");
    for (key, text) in environment.iter() {
        let key = key.as_str().to_owned();
        let value = match variables.texts.contains(&key.as_str()) {
            true => Value::from(text),
            false => text.parse().unwrap_or_else(|never| match never {}),
        };
        figment = figment.merge(Variable { key, value });
    }
    figment
        .merge(Serialized::defaults(flags))
        .extract()
        .map_err(|errors| InvalidSettings(describe(errors)))
}

/// One environment variable that is a setting.
struct Variable {
    key: String,
    value: Value,
}

impl Provider for Variable {
    fn metadata(&self) -> Metadata {
        let name = self.key.replace('.', "__").to_uppercase();
        Metadata::named(format!("{ENVIRONMENT_PREFIX}{name}"))
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        let nested = nest(&self.key, self.value.clone());
        let settings = nested.into_dict().unwrap_or_default();
        Ok(Profile::Default.collect(settings))
    }
}

/// Says where a file cannot be read as TOML; its text, which may hold secrets, is not shown.
fn check_syntax(path: &Path) -> Result<(), InvalidSettings> {
    let shown = path.display();
    if !path.is_file() {
        let why = format!("the settings file {shown} does not exist; check --config");
        return Err(InvalidSettings(why));
    }
    let text = fs::read_to_string(path)
        .map_err(|why| InvalidSettings(format!("read the settings file {shown}: {why}")))?;
    let Err(error) = toml::from_str::<toml::Table>(&text) else {
        return Ok(());
    };
    let at = error.span().map_or(0, |it| it.start);
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|it| *it != '\n').count() + 1;
    let what = error.message().replace('\n', ", ");
    let why = format!("no TOML at line {line}, column {column}: {what} (in {shown})");
    Err(InvalidSettings(why))
}

/// One line for the first error; figment's own text has no key for unknown fields deeper down.
fn describe(errors: figment::Error) -> String {
    let Some(error) = errors.into_iter().next() else {
        return "the settings cannot be read".to_owned();
    };
    let source = error.metadata.as_ref().map(|it| match &it.source {
        Some(Source::File(path)) => format!(" (in {})", path.display()),
        Some(_) => String::new(),
        None => format!(" (in {})", it.name),
    });
    let source = source.unwrap_or_default();
    let key = error.path.join(".");
    let what = explain(&error.kind);
    if key.is_empty() {
        format!("invalid settings: {what}{source}")
    } else {
        format!("invalid setting {key}: {what}{source}")
    }
}

/// What the standard library says of a text that is no address.
const NO_ADDRESS: &str = "invalid socket address syntax";
/// How addresses are written.
const ADDRESS: &str = "IP:port, such as 127.0.0.1:8080";

/// What is wrong, without names of types. A value of the wrong type is not shown: it may be a secret.
fn explain(kind: &Kind) -> String {
    match kind {
        Kind::Message(text) if text == NO_ADDRESS => format!("write {ADDRESS}"),
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            format!("found {}, expected {}", found_words(found), words(expected))
        }
        Kind::UnknownField(name, known) => {
            format!("unknown field {name}: there are {}", known.join(", "))
        }
        Kind::UnknownVariant(name, known) => {
            format!("{name:?} is unknown: choose of {}", known.join(", "))
        }
        other => other.to_string().replace('\n', " "),
    }
}

fn found_words(found: &Actual) -> &'static str {
    match found {
        Actual::Bool(_) => "true or false",
        Actual::Signed(number) if *number < 0 => "a negative number",
        Actual::Unsigned(_) | Actual::Signed(_) | Actual::Float(_) => "a number",
        Actual::Char(_) | Actual::Str(_) => "text",
        Actual::Seq => "a list",
        Actual::Map => "a table",
        _ => "something else",
    }
}

/// What serde says that it expected, in the words of a settings file.
fn words(expected: &str) -> String {
    let up_to = |most: u64| format!("a whole number between 0 and {most}");
    match expected {
        "u8" => up_to(u8::MAX.into()),
        "u16" => up_to(u16::MAX.into()),
        "u32" => up_to(u32::MAX.into()),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "path string" => "text".to_owned(),
        "a sequence" => "a list".to_owned(),
        "socket address" => ADDRESS.to_owned(),
        it if it.starts_with("struct ") => "a table".to_owned(),
        it if it.starts_with("enum ") => "a name".to_owned(),
        it => it.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write as _;

    use serde::Deserialize;

    use super::{Variables, load};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Settings {
        port: u16,
        router: Router,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Router {
        policy: String,
    }

    impl Default for Settings {
        fn default() -> Self {
            Self {
                port: 8080,
                router: Router::default(),
            }
        }
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("room for it");
        file
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = file("port = 1\n[router]\npolicy = \"random\"\n");

        let settings: Settings = load(
            Some(file.path()),
            Variables::default(),
            BTreeMap::from([("port", 2)]),
        )
        .unwrap();

        assert_eq!(settings.port, 2);
        assert_eq!(settings.router.policy, "random");
        let plain: Settings =
            load(None, Variables::default(), BTreeMap::<&str, u16>::new()).unwrap();
        assert_eq!(plain.port, 8080);
    }

    #[test]
    fn an_error_is_one_line_that_names_the_key_and_the_file() {
        let check = |text: &str, parts: &[&str]| {
            let file = file(text);
            let flags = BTreeMap::<&str, u16>::new();
            let error =
                load::<Settings>(Some(file.path()), Variables::default(), flags).unwrap_err();
            let error = error.to_string();
            let name = file.path().to_string_lossy().into_owned();
            for part in parts.iter().copied().chain([name.as_str()]) {
                assert!(error.contains(part), "{error:?} does not say {part:?}");
            }
            assert_eq!(error.lines().count(), 1);
        };

        check("[router]\npolcy = \"kv\"\n", &["router", "polcy", "policy"]);
        check(
            "port = \"x\"\n",
            &["port", "found text", "between 0 and 65535"],
        );
        check("port = -1\n", &["port", "found a negative number"]);
        check("router = 1\n", &["router", "expected a table"]);
        check("port = 1\nport = \n", &["line 2, column 8"]);
    }

    #[test]
    fn a_value_of_the_wrong_type_is_not_shown() {
        for text in [
            "[router]\npolicy = 4711\n",
            "[router]\npolicy = 4711 oops\n",
        ] {
            let file = file(text);
            let flags = BTreeMap::<&str, u16>::new();
            let error = load::<Settings>(Some(file.path()), Variables::default(), flags);

            let error = error.unwrap_err().to_string();
            assert!(!error.contains("4711"), "{error}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let flags = BTreeMap::<&str, u16>::new();
        let error = load::<Settings>(
            Some("/nowhere/rankway.toml".as_ref()),
            Variables::default(),
            flags,
        )
        .unwrap_err();

        assert!(error.to_string().contains("/nowhere/rankway.toml"));
    }
}
