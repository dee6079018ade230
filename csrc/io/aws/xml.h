// As much of XML as S3 and STS answer with.
//
// By hand, because three answers of a known form need the text of one element each, and nothing
// else that an XML library brings: entities, documents elsewhere, trees.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tensorizer {

// The name of the root element, without its namespace; empty where the document has none.
std::string xml_root(std::string_view document);

// The text of the first element of this name, whatever its namespace, with entities decoded.
// Nothing where there is none, where it holds anything but text, or where what is before it is not
// XML. Documents that declare a type, which could define entities, have no elements here.
std::optional<std::string> xml_text(std::string_view document, std::string_view element);

}  // namespace tensorizer
