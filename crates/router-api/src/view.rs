//! What the router says of itself, as JSON: the admin API, `/v1/route` and `explain`.

mod binding;
mod decision;
mod fleet;
mod names;
mod outcome;
mod text;
mod waterfall;

pub(crate) use binding::{BindingView, PageView};
pub(crate) use decision::DecisionView;
pub(crate) use fleet::{TargetView, WorkerView};
pub(crate) use outcome::{OutcomeAnswer, RouteView, SendView};
pub(crate) use text::describe;
pub(crate) use waterfall::TotalsView;
