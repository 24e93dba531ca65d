//! Whose a request is: an API key names a tenant, and what a tenant's requests leave behind is kept apart by a salt.
//!
//! The salt that an engine sees is made from the tenant and from what its client gave as `cache_salt`, under a secret
//! that all routers share. No client can say it for another tenant. Engines that know salts keep their caches apart by
//! it; it seeds the block hashes, so the index, reservations and lineage of tenants have no hash in common.

mod settings;

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use domain::TenantId;
use ring::{digest, hmac};
use routing::admission::Priority;

pub(crate) use settings::check;
pub use settings::{ApiKey, InvalidKey, InvalidTenants, SaltSecret, TenantConfig};

/// Keys of all tenants: each request's is compared with all of them, 32 bytes each.
pub(crate) const MAX_KEYS: usize = 4_096;
/// What salts are made for, so that the secret may serve for something else too.
const PURPOSE: &[u8] = b"rankway cache salt v1";

/// What a tenant's own answers are known by.
const OWN_ANSWER: &[u8] = b"rankway own answer v1";

/// One tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
    /// Whether its requests are refused while the affinity store is silent.
    pub(crate) fail_closed: bool,
    /// Its share of what there is, where requests wait.
    pub(crate) weight: NonZeroU32,
    /// More than this it does not get, whatever it asks for.
    pub(crate) highest_priority: Priority,
    /// Whether a key named it; the salt of the only tenant there is stays as its clients say it.
    is_named: bool,
}

/// Everybody who may ask.
#[derive(Debug)]
pub(crate) enum Tenants {
    /// Whoever reaches the router is this tenant.
    One(Arc<Tenant>),
    /// Whoever has a key is its tenant, and nobody else is served.
    Keyed {
        /// By the SHA-256 of each key.
        by_key: Vec<([u8; digest::SHA256_OUTPUT_LEN], Arc<Tenant>)>,
        salts: Salts,
    },
}

/// Makes salts.
pub(crate) struct Salts(hmac::Key);

impl std::fmt::Debug for Salts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salts(..)")
    }
}

impl Tenants {
    /// Those of the settings; where there are none, `default` alone. Refuses settings that [`check`] refuses,
    /// and tenants without a secret to make salts under.
    pub(crate) fn new(
        default: &TenantId,
        tenants: &[TenantConfig],
        secret: Option<&SaltSecret>,
    ) -> Result<Self, InvalidTenants> {
        check(tenants, secret)?;
        if tenants.is_empty() {
            return Ok(Self::One(Arc::new(Tenant {
                id: default.clone(),
                fail_closed: false,
                weight: NonZeroU32::MIN,
                highest_priority: Priority::HIGHEST,
                is_named: false,
            })));
        }
        let secret = secret.ok_or(InvalidTenants::NoSecret)?;
        let by_key = tenants.iter().flat_map(|it| {
            let tenant = Arc::new(Tenant {
                id: it.name.clone(),
                fail_closed: it.fail_closed,
                weight: it.weight,
                highest_priority: it.highest_priority,
                is_named: true,
            });
            it.keys
                .iter()
                .map(move |key| (key.digest(), tenant.clone()))
        });
        Ok(Self::Keyed {
            by_key: by_key.collect(),
            salts: Salts(hmac::Key::new(
                hmac::HMAC_SHA256,
                secret.reveal().as_bytes(),
            )),
        })
    }

    /// Whose request it is that shows one of `keys`, the first that is known. How long it takes says nothing of any
    /// key: each is hashed, and its hash is compared with all whole.
    pub(crate) fn of<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) -> Option<Arc<Tenant>> {
        let by_key = match self {
            Self::One(tenant) => return Some(tenant.clone()),
            Self::Keyed { by_key, .. } => by_key,
        };
        keys.into_iter().find_map(|key| {
            let shown = digest::digest(&digest::SHA256, key);
            let mut found = None;
            for (known, tenant) in by_key {
                let differs = known.iter().zip(shown.as_ref());
                if differs.fold(0, |all, (one, other)| all | (one ^ other)) == 0 {
                    found = Some(tenant);
                }
            }
            found.cloned()
        })
    }

    /// Whether requests need a key.
    pub(crate) fn need_keys(&self) -> bool {
        matches!(self, Self::Keyed { .. })
    }

    /// Everybody's id, each once.
    pub(crate) fn ids(&self) -> BTreeSet<TenantId> {
        match self {
            Self::One(tenant) => BTreeSet::from([tenant.id.clone()]),
            Self::Keyed { by_key, .. } => by_key.iter().map(|it| it.1.id.clone()).collect(),
        }
    }

    /// Those whose requests are refused while the affinity store is silent.
    pub(crate) fn fail_closed(&self) -> BTreeSet<TenantId> {
        match self {
            Self::One(_) => BTreeSet::new(),
            Self::Keyed { by_key, .. } => {
                let closed = by_key.iter().filter(|it| it.1.fail_closed);
                closed.map(|it| it.1.id.clone()).collect()
            }
        }
    }

    /// The salt of a request, as engine and index see it: of a tenant named by a key HMAC-SHA256 over a purpose, the
    /// tenant's name led by its length, and what the client gave, led by whether it gave anything; in 64 hexadecimal
    /// digits. Else what the client gave.
    pub(crate) fn salt(&self, tenant: &Tenant, given: Option<&str>) -> Option<String> {
        let given = given.filter(|it| !it.is_empty());
        let salts = match self {
            Self::Keyed { salts, .. } if tenant.is_named => salts,
            Self::Keyed { .. } | Self::One(_) => return given.map(str::to_owned),
        };
        Some(salts.make(PURPOSE, tenant, given))
    }

    /// What the answer of this id is bound under that an engine gave `tenant`: made as its salts are, for another
    /// purpose, so that no client can say it. None where no key named the tenant.
    pub(crate) fn own_answer(&self, tenant: &Tenant, id: &str) -> Option<String> {
        match self {
            Self::Keyed { salts, .. } if tenant.is_named => {
                Some(salts.make(OWN_ANSWER, tenant, Some(id)))
            }
            Self::Keyed { .. } | Self::One(_) => None,
        }
    }
}

impl Salts {
    fn make(&self, purpose: &[u8], tenant: &Tenant, given: Option<&str>) -> String {
        let mut made = hmac::Context::with_key(&self.0);
        made.update(purpose);
        let name = tenant.id.as_str();
        made.update(&(name.len() as u64).to_le_bytes());
        made.update(name.as_bytes());
        made.update(&[u8::from(given.is_some())]);
        made.update(given.unwrap_or_default().as_bytes());
        let digits = made.sign();
        let digits = digits.as_ref().iter();
        digits.map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Tenant {
    /// Whether a key named it, so that its salts are made here.
    pub(crate) const fn is_named(&self) -> bool {
        self.is_named
    }
}

/// Salts that a client gives which another tenant's clients gave, or which were made for another tenant.
#[derive(Debug, Default)]
pub(crate) struct SaltAudit {
    /// By salt, hashed: whose it is. Beyond [`Self::MAX_SALTS`] it begins anew.
    owners: HashMap<[u8; 16], TenantId>,
}

impl SaltAudit {
    /// About 100 bytes each. A client that makes them up can make the audit forget, and gains nothing: no salt that
    /// a client gives is ever used as it is.
    const MAX_SALTS: usize = 65_536;

    /// Takes in what a client of `tenant` gave and what was made of it. Says whose the given one is, where that is
    /// another tenant.
    pub(crate) fn see(&mut self, tenant: &TenantId, given: &str, made: &str) -> Option<TenantId> {
        let owner = self.owner(given, tenant);
        self.owner(made, tenant);
        (owner != *tenant).then_some(owner)
    }

    fn owner(&mut self, salt: &str, tenant: &TenantId) -> TenantId {
        let hash = digest::digest(&digest::SHA256, salt.as_bytes());
        let (hash, _) = hash
            .as_ref()
            .split_first_chunk()
            .expect("a SHA-256 has 32 bytes");
        if let Some(owner) = self.owners.get(hash) {
            return owner.clone();
        }
        if self.owners.len() == Self::MAX_SALTS {
            self.owners.clear();
        }
        self.owners.insert(*hash, tenant.clone());
        tenant.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef";

    fn tenant(name: &str, keys: &[&str]) -> TenantConfig {
        TenantConfig {
            keys: keys.iter().map(|it| it.parse().unwrap()).collect(),
            ..TenantConfig::new(name.parse().unwrap())
        }
    }

    fn tenants(tenants: &[TenantConfig], secret: &str) -> Tenants {
        let default = "default".parse().unwrap();
        Tenants::new(&default, tenants, Some(&SaltSecret::new(secret))).unwrap()
    }

    fn name(found: Option<Arc<Tenant>>) -> Option<String> {
        found.map(|it| it.id.to_string())
    }

    #[test]
    fn a_key_names_its_tenant_however_it_is_written_in_the_settings() {
        // Computed apart, with `sha256sum`.
        let digits = "77c1005401bd4fd1dd7abead933235efcdb445de720551146bc8f8bd13abf74c";
        let hashed = format!("sha256:{digits}");
        let all = tenants(
            &[tenant("a", &["a-1", "a-2"]), tenant("b", &["b-1", &hashed])],
            SECRET,
        );
        let of = |key: &str| name(all.of([key.as_bytes()]));
        for (key, owner) in [("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("b-2", "b")] {
            assert_eq!(of(key).as_deref(), Some(owner), "{key}");
        }
        for wrong in ["", "a-", "a-11", "A-1", &hashed, digits] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(name(all.of([&b"wrong"[..], b"b-1"])).as_deref(), Some("b"));
        assert_eq!(name(all.of([])), None);
        assert_eq!(all.ids().len(), 2);
    }

    #[test]
    fn without_keys_everybody_is_the_default_and_salts_stay_as_they_are() {
        let all = Tenants::new(&"d".parse().unwrap(), &[], None).unwrap();
        let one = all.of([&b"any"[..]]).unwrap();
        assert_eq!(one.id.as_str(), "d");
        assert_eq!(all.salt(&one, Some("s")).as_deref(), Some("s"));
        assert_eq!(all.salt(&one, Some("")), None);
        assert_eq!(all.salt(&one, None), None);
        assert!(!all.need_keys());
    }

    #[test]
    fn salts_are_a_tenants_own_whatever_clients_give() {
        let all = tenants(&[tenant("a", &["a"]), tenant("ab", &["b"])], SECRET);
        let [a, b] = [b"a", b"b"].map(|key| all.of([&key[..]]).unwrap());
        let mut made = BTreeSet::new();
        let own = all.salt(&a, None).unwrap();
        for given in [None, Some("x"), Some("bx"), Some(own.as_str())] {
            for tenant in [&a, &b] {
                let salt = all.salt(tenant, given).unwrap();
                assert_eq!(salt.len(), 64);
                assert!(made.insert(salt.clone()), "{given:?} of {}", tenant.id);
                assert_eq!(all.salt(tenant, given), Some(salt), "made again");
            }
        }
        assert_eq!(all.salt(&a, Some("")), Some(own.clone()));
        let other = tenants(&[tenant("a", &["a"])], "0123456789abcdeF");
        let a = other.of([&b"a"[..]]).unwrap();
        assert_ne!(other.salt(&a, None), Some(own));
    }

    #[test]
    fn a_salt_is_the_same_in_every_release() {
        let all = tenants(&[tenant("acme", &["k"])], SECRET);
        let acme = all.of([&b"k"[..]]).unwrap();
        let salts = [None, Some("s")].map(|given| all.salt(&acme, given).unwrap());
        assert_eq!(salts, GOLDEN);
    }

    /// Computed apart, with Python's `hmac`.
    const GOLDEN: [&str; 2] = [
        "dcadbaa017b6f383c0a776af9903cadbfc70e4dd2a01b5cb14bb88064600d010",
        "fc5b35096b305dbbbdd3f0c4827d13b8a8d01c85e9bd5e9f1daf20025aad58bb",
    ];

    #[test]
    fn a_salt_of_another_tenant_is_noticed() {
        let [a, b]: [TenantId; 2] = ["a", "b"].map(|it| it.parse().unwrap());
        let mut audit = SaltAudit::default();
        assert_eq!(audit.see(&a, "given by a", "made for a"), None);
        assert_eq!(audit.see(&a, "given by a", "made for a"), None);
        assert_eq!(audit.see(&b, "given by a", "made for b"), Some(a.clone()));
        assert_eq!(
            audit.see(&b, "made for a", "made for b again"),
            Some(a.clone())
        );
        assert_eq!(audit.see(&a, "made for b", "made for a again"), Some(b));
        for number in 0..2 * SaltAudit::MAX_SALTS {
            audit.see(&a, &number.to_string(), "made for a");
        }
        assert!(audit.owners.len() <= SaltAudit::MAX_SALTS);
    }
}
