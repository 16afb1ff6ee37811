//! What brokers owe each other for one shard. Not built yet: a shard has one copy, on the node that serves it.
//! Its place in the dependency order is fixed: it never touches a file, and the shard joins it to the log.
