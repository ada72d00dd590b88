//! What the placement policies promise, on made hosts: worked examples, properties, and the
//! checkers proven by policies that break them.

mod bnn;
mod broken;
mod check;
mod claims;
mod conflict;
mod exact;
mod fixed;
mod fixed_point;
mod homes;
mod instep;
mod made;
mod properties;
mod score;
mod soft;
mod table;
