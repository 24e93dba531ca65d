//! The secret of binding keys: configured, else made once in the data folder.

use affinity::{BindingSecret, SecretTooShort};
use service_kit::{KeptSecretError, kept_secret};

use crate::Config;

const FILE_NAME: &str = "binding-key";

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The configured one will not do.
    #[error("use the setting affinity.secret")]
    Configured(#[source] SecretTooShort),
    /// The one that is kept will not do; it is for the bindings.
    #[error("use the secret of binding keys")]
    Kept(#[from] KeptSecretError),
}

/// The configured secret, else the one in the data folder, else a new one that is kept there.
pub(crate) fn obtain(config: &Config) -> Result<BindingSecret, SecretError> {
    let text = match &config.secret {
        Some(secret) => secret.reveal().to_owned(),
        None => kept_secret(&config.data_dir, FILE_NAME)?,
    };
    BindingSecret::new(text.as_bytes()).map_err(SecretError::Configured)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use affinity::{BindingKey, ConversationKey};

    use super::*;
    use crate::config::Secret;

    fn key_under(secret: &BindingSecret) -> BindingKey {
        let key = ConversationKey {
            tenant: "t".parse().unwrap(),
            model: "m".parse().unwrap(),
            conversation: "c".parse().unwrap(),
        };
        BindingKey::of(&key, secret)
    }

    fn config(data_dir: &Path) -> Config {
        Config {
            data_dir: data_dir.to_owned(),
            ..Config::default()
        }
    }

    #[test]
    fn each_folder_has_a_secret_of_its_own_that_stays() {
        let folder = tempfile::tempdir().unwrap();
        let first = key_under(&obtain(&config(folder.path())).unwrap());
        let second = key_under(&obtain(&config(folder.path())).unwrap());
        assert_eq!(first, second);

        let elsewhere = tempfile::tempdir().unwrap();
        let other = obtain(&config(elsewhere.path())).unwrap();
        assert_ne!(key_under(&other), first);
    }

    #[test]
    fn a_configured_secret_touches_no_file_and_is_never_shown() {
        let config = Config {
            secret: Some(Secret::new("0123456789abcdef")),
            ..config(Path::new("/nonexistent"))
        };
        assert!(obtain(&config).is_ok());
        assert!(!format!("{config:?}").contains("0123"));
    }

    #[test]
    fn a_short_secret_is_an_error_that_names_the_setting() {
        let short = Config {
            secret: Some(Secret::new("short")),
            ..Config::default()
        };
        let error = obtain(&short).unwrap_err();
        assert!(error.to_string().contains("affinity.secret"));
        assert!(obtain(&config(Path::new("/proc/none"))).is_err());
    }
}
