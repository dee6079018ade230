// Parses as much XML as the responses of S3 and STS need.
//
// Written by hand, because three responses of a known form need the text of a few elements, and
// nothing else that an XML library brings: custom entities, external documents, trees.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tensorizer {

// Returns the name of the root element, without its namespace; empty if there is none.
std::string xml_root(std::string_view document);

// Returns the text of the first element of this name, in any namespace, with entities decoded.
// Returns null if there is none, if it holds anything but text, or if the document is malformed
// before it. Also returns null for documents with a DOCTYPE, which could define entities.
std::optional<std::string> xml_text(std::string_view document, std::string_view element);

}  // namespace tensorizer
