//! The generated wire types, in modules as `proto/` has packages; they never leave this crate.

pub(crate) mod v1 {
    #![expect(
        unreachable_pub,
        clippy::allow_attributes,
        clippy::allow_attributes_without_reason,
        reason = "generated from proto/, which documents them"
    )]
    include!(concat!(env!("OUT_DIR"), "/rankway.v1.rs"));
}

pub(crate) mod store {
    pub(crate) mod v1 {
        #![expect(
            unreachable_pub,
            reason = "generated from proto/, which documents them"
        )]
        include!(concat!(env!("OUT_DIR"), "/rankway.store.v1.rs"));
    }
}
