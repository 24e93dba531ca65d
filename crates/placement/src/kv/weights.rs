//! The numbers of our policy.

use crate::policy::parameters;

parameters! {
    /// What each part of a price weighs, and how close prices are as good as equal. A weight of 0 switches its part off.
    Weights {
        /// Of waiting for the work that is there already.
        pending = 1.0 in 0.0..=1000.0;
        /// Of what the oldest that waits there has waited beyond what it should have.
        overdue = 2.0 in 0.0..=1000.0;
        /// What a second of computing weighs besides, at any load: it takes the place of what others would find cached,
        /// and leaves two copies of what one would have done for.
        again = 1.0 in 0.0..=1000.0;
        /// What a second of delay to later requests weighs against one of this request's own. With an open queue of
        /// utilisation `u`, work that keeps a rank busy for a second delays those who come before it is idle again
        /// by `u / (1 - u)` seconds in all; `u` is the fleet's, so that every target's work has one price.
        delay = 3.5 in 0.0..=1000.0;
        /// What a second of computing weighs more where of late as much was asked for as elsewhere in the mean; where
        /// twice as much was, twice this.
        balance = 4.0 in 0.0..=1000.0;
        /// Of fetching blocks from slower tiers.
        transfer = 1.0 in 0.0..=1000.0;
        /// Of what a prefill adds to the slowest rank of its worker.
        lockstep = 1.0 in 0.0..=1000.0;
        /// Of sharing the rank's steps with the sequences it serves.
        decode = 1.0 in 0.0..=1000.0;
        /// Of computing again what others lose when the rank is full.
        capacity = 4.0 in 0.0..=1000.0;
        /// Of what bound conversations will wait for each other: as of `delay`.
        obligation = 1.0 in 0.0..=1000.0;
        /// Utilisation is taken to be at most this: the price of work has to stay finite where a rank falls behind.
        highest_utilisation = 0.8 in 0.0..=0.99;
        /// Prices this close to the smallest, as a share of what the request itself waits there, are as good as equal.
        near_share = 0.05 in 0.0..=10.0;
        /// Prices this close to the smallest, in seconds, are as good as equal.
        near_seconds = 0.005 in 0.0..=60.0;
        /// Seconds that a request waits more than it had to, so that the turns of its conversation meet.
        home_seconds = 2.0 in 0.0..=600.0;
    }
}
