// Package discover stands in for Vault's search for its cluster in thirteen clouds, whose SDKs are a third of all that
// would have to be compiled. The tests' Vault is alone.
package discover

import (
	"errors"
	"log"
)

var errNone = errors.New("this Vault joins no cluster")

type Discover struct{}

type Provider any

var Providers map[string]Provider

type Option func()

func New(...Option) (*Discover, error) { return &Discover{}, nil }

func WithProviders(map[string]Provider) Option { return func() {} }

func (*Discover) Addrs(string, *log.Logger) ([]string, error) { return nil, errNone }

type Config map[string]string

func (Config) String() string { return "" }

func Parse(string) (Config, error) { return nil, errNone }
