//! Who a process is to its peers, where they ask.

use std::fmt;

use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// A certificate and whom it trusts, as PEM texts. Both sides of a connection show theirs.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The authority that has signed the certificates of all peers.
    pub ca: String,
    /// This process's certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// The name that peers' certificates bear; the host of their address where none is given.
    pub name: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Credentials");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

impl Credentials {
    /// As a server shows and asks for them.
    pub fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new()
            .identity(self.identity())
            .client_ca_root(Certificate::from_pem(&self.ca))
    }

    pub(super) fn client(&self) -> ClientTlsConfig {
        let config = ClientTlsConfig::new()
            .identity(self.identity())
            .ca_certificate(Certificate::from_pem(&self.ca));
        match &self.name {
            Some(name) => config.domain_name(name),
            None => config,
        }
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(&self.certificate, &self.key)
    }
}
