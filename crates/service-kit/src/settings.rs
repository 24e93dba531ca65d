//! Settings: defaults, then a file, then the environment, then flags.

use std::path::Path;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
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

/// Reads settings: the type's defaults under `file`, under the environment, under `flags` (a struct or map
/// whose unset values are skipped when serialised). `flag_variables` are environment variables, without
/// the prefix, that stand for flags and are no settings.
pub fn load<S: DeserializeOwned>(
    file: Option<&Path>,
    flag_variables: &[&str],
    flags: impl Serialize,
) -> Result<S, InvalidSettings> {
    let mut figment = Figment::new();
    if let Some(path) = file {
        if !path.is_file() {
            let path = path.display();
            let why = format!("the settings file {path} does not exist; check --config");
            return Err(InvalidSettings(why));
        }
        figment = figment.merge(Toml::file_exact(path));
    }
    let environment = Env::prefixed(ENVIRONMENT_PREFIX)
        .ignore(&[&LOG_VARIABLE[ENVIRONMENT_PREFIX.len()..]])
        .ignore(flag_variables)
        .split("__");
    figment
        .merge(environment)
        .merge(Serialized::defaults(flags))
        .extract()
        .map_err(|errors| InvalidSettings(describe(errors)))
}

/// One line for the first error; figment's own text has no key for unknown fields deeper down.
fn describe(errors: figment::Error) -> String {
    let Some(error) = errors.into_iter().next() else {
        return "the settings cannot be read".to_owned();
    };
    let source = match error.metadata.as_ref() {
        Some(metadata) => match &metadata.source {
            Some(source) => format!(" (in {source})"),
            None => format!(" (in {})", metadata.name),
        },
        None => String::new(),
    };
    let key = error.path.join(".");
    let what = error.kind.to_string().replace('\n', " ");
    if key.is_empty() {
        format!("invalid settings: {what}{source}")
    } else {
        format!("invalid setting {key}: {what}{source}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write as _;

    use serde::Deserialize;

    use super::load;

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

        let settings: Settings =
            load(Some(file.path()), &[], BTreeMap::from([("port", 2)])).unwrap();

        assert_eq!(settings.port, 2);
        assert_eq!(settings.router.policy, "random");
        let plain: Settings = load(None, &[], BTreeMap::<&str, u16>::new()).unwrap();
        assert_eq!(plain.port, 8080);
    }

    #[test]
    fn an_error_is_one_line_that_names_the_key_and_the_file() {
        let check = |text: &str, parts: &[&str]| {
            let file = file(text);
            let flags = BTreeMap::<&str, u16>::new();
            let error = load::<Settings>(Some(file.path()), &[], flags).unwrap_err();
            let error = error.to_string();
            let name = file.path().to_string_lossy().into_owned();
            for part in parts.iter().copied().chain([name.as_str()]) {
                assert!(error.contains(part), "{error:?} does not say {part:?}");
            }
            assert_eq!(error.lines().count(), 1);
        };

        check("[router]\npolcy = \"kv\"\n", &["router", "polcy", "policy"]);
        check("port = \"x\"\n", &["port"]);
        check("port = \n", &[]);
    }

    #[test]
    fn a_missing_file_is_named() {
        let flags = BTreeMap::<&str, u16>::new();
        let error =
            load::<Settings>(Some("/nowhere/rankway.toml".as_ref()), &[], flags).unwrap_err();

        assert!(error.to_string().contains("/nowhere/rankway.toml"));
    }
}
