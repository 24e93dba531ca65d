//! Names that many bindings have in common, each kept once.

use std::collections::HashSet;
use std::hash::Hash;

use affinity::Binding;
use domain::{InstanceId, ModelName, TenantId, WorkerId};

use crate::ask::Ask;

/// Names of one kind that are kept: far more than a fleet has workers and models. Beyond, they begin anew, which costs
/// memory and nothing else.
const MAX_NAMES: usize = 65_536;

/// The names seen lately.
#[derive(Default)]
pub(crate) struct Names {
    tenants: HashSet<TenantId>,
    models: HashSet<ModelName>,
    workers: HashSet<WorkerId>,
    actors: HashSet<InstanceId>,
}

impl Names {
    /// Lets a binding share its names with others.
    pub(crate) fn share(&mut self, binding: &mut Binding) {
        share(&mut self.tenants, &mut binding.key.tenant);
        share(&mut self.models, &mut binding.key.model);
        share(&mut self.workers, &mut binding.target.worker);
        share(&mut self.actors, &mut binding.actor);
    }

    /// Lets what is to be done share the names that a binding may take from it.
    pub(crate) fn share_asked(&mut self, ask: &mut Ask) {
        match ask {
            Ask::Acquire(request, _) => {
                share(&mut self.tenants, &mut request.key.tenant);
                share(&mut self.models, &mut request.key.model);
                share(&mut self.workers, &mut request.proposed.worker);
                share(&mut self.actors, &mut request.actor);
            }
            Ask::Confirm(request, _) => {
                share(&mut self.workers, &mut request.observed.worker);
                share(&mut self.actors, &mut request.actor);
            }
            Ask::Rebind(request, _) => {
                share(&mut self.workers, &mut request.to.worker);
                share(&mut self.actors, &mut request.actor);
            }
            Ask::Reassign(request, _) => {
                share(&mut self.workers, &mut request.to.worker);
                share(&mut self.actors, &mut request.actor);
            }
            Ask::Import(binding, _) => self.share(binding),
            Ask::Get(_)
            | Ask::Release(..)
            | Ask::Unbind(..)
            | Ask::Renew(_)
            | Ask::Lapse
            | Ask::MakeRoom
            | Ask::Refresh(_) => {}
        }
    }
}

fn share<T: Clone + Eq + Hash>(names: &mut HashSet<T>, name: &mut T) {
    if let Some(known) = names.get(name) {
        known.clone_into(name);
        return;
    }
    if MAX_NAMES <= names.len() {
        names.clear();
    }
    names.insert(name.clone());
}
