//! Where the servers are, who connects, and what they keep.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How a process reaches NATS and what it asks of it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses of one cluster, such as `nats://10.0.0.1:4222`, or `tls://` where nothing may be sent in the
    /// clear. Each is tried; those that a server names are found by themselves.
    pub servers: Vec<String>,
    /// The first word of every subject and stream, so that several installations can share a cluster. Letters,
    /// digits, `-` and `_`.
    pub prefix: String,
    /// The first word of the subjects at which answers come. Where it is a user's own, and only that user may subscribe
    /// there, nobody else reads what the user is told.
    pub inbox: String,
    /// What the connection is called in the server's own reports.
    pub name: String,
    /// Who connects.
    pub login: Login,
    /// How servers prove who they are, and how the client does.
    pub tls: Tls,
    /// On how many servers each log and table is kept: 1, or 3 or 5 in a cluster.
    pub replicas: usize,
    /// The oldest records of a topic go when it has more bytes than this, even before their retention ends. The
    /// server sets this much disk aside for every durable topic.
    pub topic_bytes: u64,
    /// For how long a table remembers that a key was deleted, at least. A watcher that is further behind watches
    /// again.
    pub deletions_kept: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            servers: vec!["nats://127.0.0.1:4222".to_owned()],
            prefix: "rankway".to_owned(),
            inbox: "_INBOX".to_owned(),
            name: "rankway".to_owned(),
            login: Login::None,
            tls: Tls::default(),
            replicas: 1,
            topic_bytes: 1024 * 1024 * 1024,
            deletions_kept: Duration::from_secs(3600),
        }
    }
}

/// Who connects.
#[derive(Clone, Default)]
pub enum Login {
    /// Nobody in particular, or whom the address names (`nats://user:password@host`).
    #[default]
    None,
    /// A user with a password.
    User {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A shared token.
    Token(String),
    /// The seed of an NKey, which begins with `SU`.
    NkeySeed(String),
    /// A file with a JWT and its seed, as `nsc` writes it.
    Credentials(PathBuf),
}

impl fmt::Debug for Login {
    /// Without what is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::User { user, .. } => write!(f, "User({user})"),
            Self::Token(_) => f.write_str("Token"),
            Self::NkeySeed(_) => f.write_str("NkeySeed"),
            Self::Credentials(path) => write!(f, "Credentials({})", path.display()),
        }
    }
}

/// How both sides prove who they are.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Whether a server without TLS is refused.
    pub required: bool,
    /// Certificates (PEM) to trust besides those of the system.
    pub ca: Option<PathBuf>,
    /// The client's own certificate and its key (PEM).
    pub client: Option<ClientCertificate>,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// The file of the certificate, with those between it and the CA.
    pub certificate: PathBuf,
    /// The file of its key.
    pub key: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_shown_without_their_secrets() {
        let logins = [
            Login::User {
                user: "u".to_owned(),
                password: "secret".to_owned(),
            },
            Login::Token("secret".to_owned()),
            Login::NkeySeed("secret".to_owned()),
        ];
        for login in logins {
            let settings = Settings {
                login,
                ..Settings::default()
            };
            assert!(!format!("{settings:?}").contains("secret"));
        }
    }
}
