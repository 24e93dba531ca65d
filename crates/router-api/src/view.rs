//! What the router says of itself, as JSON: the admin API, `/v1/route` and `explain`.

mod account;
mod binding;
mod decision;
mod fleet;
pub(crate) mod names;
mod outcome;
mod shadow;
mod text;
mod waterfall;
mod why_not;

pub(crate) use account::{AccountView, describe_account};
pub(crate) use binding::{BindingView, PageView};
pub(crate) use decision::DecisionView;
pub(crate) use fleet::{TargetView, WorkerView};
pub(crate) use outcome::{OutcomeAnswer, RouteView, SendView};
pub(crate) use shadow::{ShadowView, describe_shadow};
pub(crate) use text::describe;
pub(crate) use why_not::WhyNot;
