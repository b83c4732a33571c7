// The tests' Vault: its core, its HTTP API, the transit secrets engine and two ways to log in. All in memory.
package main

import (
	"log"
	"net"
	"net/http"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-kms-wrapping/wrappers/aead/v2"
	kubernetes "github.com/hashicorp/vault-plugin-auth-kubernetes"
	"github.com/hashicorp/vault/builtin/credential/approle"
	"github.com/hashicorp/vault/builtin/logical/transit"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
	"github.com/hashicorp/vault/vault/seal"
)

func main() {
	logger := hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Warn})
	storage, err := inmem.NewInmem(nil, logger)
	check(err)
	access, err := seal.NewAccessFromSealWrappers(logger, 1, true, []*seal.SealWrapper{
		seal.NewSealWrapper(aead.NewShamirWrapper(), 1, "shamir", "shamir", false, true),
	})
	check(err)
	core, err := vault.NewCore(&vault.CoreConfig{
		Physical:           storage,
		Seal:               vault.NewDefaultSeal(access),
		Logger:             logger,
		DisableMlock:       true,
		BuiltinRegistry:    noPlugins{},
		LogicalBackends:    map[string]logical.Factory{"transit": transit.Factory},
		CredentialBackends: map[string]logical.Factory{"approle": approle.Factory, "kubernetes": kubernetes.Factory},
	})
	check(err)
	listener, err := net.Listen("tcp", os.Args[1])
	check(err)
	properties := &vault.HandlerProperties{Core: core, ListenerConfig: &configutil.Listener{Address: os.Args[1]}}
	check(http.Serve(listener, vaulthttp.Handler.Handler(properties)))
}

// noPlugins is what Vault asks for plugins of its own; the backends above are none.
type noPlugins struct{}

func (noPlugins) Contains(string, consts.PluginType) bool                   { return false }
func (noPlugins) Get(string, consts.PluginType) (func() (any, error), bool) { return nil, false }
func (noPlugins) Keys(consts.PluginType) []string                           { return nil }
func (noPlugins) IsBuiltinEntPlugin(string, consts.PluginType) bool         { return false }
func (noPlugins) DeprecationStatus(string, consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Unknown, false
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
