//! What every front end draws with: tables and wrapped text for terminals, pages of HTML, their plots, and the statistics
//! of what is shown. Nothing here knows what is drawn.
#![forbid(unsafe_code)]

pub mod html;
pub mod plot;
pub mod stats;
pub mod table;
pub mod text;
